"""The compiled loop: what a chunk of it costs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.replay import ReplayConfig
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.config import configure
from qemrl.training.loops import make_loop

CAPACITY = 100_000


def make(num_envs: int, update_every: int, n_step: int, prioritized: bool, num_seeds: int) -> CompiledLoop:
    """A loop around a network much smaller than its replay."""
    config = configure("dqn", "probe/1", 1000, num_seeds=num_seeds, num_envs=num_envs)
    assert isinstance(config.agent, ValueConfig)
    agent = replace(
        config.agent,
        replay=ReplayConfig(CAPACITY, n_step, prioritized),
        network=NetworkConfig(widths=(8,)),
        batch_size=8,
        update_every=update_every,
        target_every=16,
    )
    loop = make_loop(replace(config, agent=agent, evaluation_episodes=1))
    assert isinstance(loop, CompiledLoop)
    return loop


@pytest.mark.parametrize(
    ("num_envs", "update_every", "n_step", "prioritized", "num_seeds"),
    [(1, 4, 1, False, 1), (1, 1, 1, False, 1), (4, 4, 3, True, 2), (16, 4, 3, True, 2)],
)
def test_a_chunk_holds_the_replay_once(num_envs, update_every, n_step, prioritized, num_seeds):
    """Copies of its arrays would need room of their own: with one vector step in an iteration, and with several."""
    loop = make(num_envs, update_every, n_step, prioritized, num_seeds)
    replay = loop.state.replay
    arguments = loop.state, loop.keys, loop._counts(), jnp.asarray(True), jnp.int32(8)
    memory = loop._chunk.lower(*arguments).compile().memory_analysis()
    assert memory is not None
    smallest = replay.terminated.nbytes
    assert smallest == num_seeds * CAPACITY
    assert memory.temp_size_in_bytes < smallest
    assert memory.alias_size_in_bytes >= sum(array.nbytes for array in jax.tree.leaves(replay))
