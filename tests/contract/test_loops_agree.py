"""From the same transitions both loops make the same updates, and choose the same actions.

The compiled loop runs first. A Gymnasium environment then plays its transitions again, whatever the actions, to the
host loop. Both loops are the real ones.
"""

from dataclasses import replace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.agents.value import NetworkConfig, ValueConfig, make_value_agent
from qemrl.envs.compiled import make_compiled, time_limited
from qemrl.envs.host import make_host_envs
from qemrl.exploration import EpsilonGreedy
from qemrl.replay import DeviceReplay, HostReplay, ReplayConfig
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.host_loop import HostLoop
from qemrl.training.pace import make_pace
from qemrl.types import EnvSpec

NUM_ENVS, SEED, FIRST_UPDATE, UPDATES = 2, 7, 64, 100
STEPS = FIRST_UPDATE + 4 * UPDATES
NAME = "contract/recorded-v0"


class Recorded(gymnasium.Env):
    """Plays recorded transitions of one environment in their order, and notes the actions."""

    def __init__(self, spec: EnvSpec, rows: dict[str, np.ndarray], chosen: list[int]) -> None:
        self.rows, self.chosen, self.now = rows, chosen, 0
        # The bounds are the compiled environment's: networks bring observations to [−1, 1] by them.
        low, high = (np.array(ends, np.float32) for ends in (spec.low, spec.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.action_space = gymnasium.spaces.Discrete(spec.num_actions)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        ended = self.now > 0 and (self.rows["terminated"][self.now - 1] or self.rows["truncated"][self.now - 1])
        if not ended:
            self.now = 0
        # After the last recorded step there is nothing to act on any more.
        return self.rows["observation"][min(self.now, len(self.rows["reward"]) - 1)], {}

    def step(self, action):
        self.chosen.append(int(action))
        row = {name: array[self.now] for name, array in self.rows.items()}
        self.now += 1
        return row["next_observation"], float(row["reward"]), bool(row["terminated"]), bool(row["truncated"]), {}


def compiled_run(config: ValueConfig) -> CompiledLoop:
    env = time_limited(make_compiled("jax/cartpole"), 15)  # some episodes end by falling, some by the limit
    loop = CompiledLoop(
        make_value_agent(config, env.spec),
        env,
        DeviceReplay(env.spec, NUM_ENVS, config.replay, config.discount),
        make_pace(NUM_ENVS, config.update_every, config.target_every, config.learning_starts, config.batch_size),
        config.batch_size,
        config.clip_rewards,
        (SEED,),
        1,
    )
    loop.advance(STEPS, False)
    return loop


def transitions(loop: CompiledLoop) -> dict[str, np.ndarray]:
    """All transitions of the run, [rows, envs, ...]: the replay is large enough to hold them."""
    replay, rows = loop.state.replay, STEPS // NUM_ENVS
    names = ("observation", "next_observation", "action", "reward", "terminated", "truncated")
    return {name: np.asarray(getattr(replay, name))[0, :rows].reshape(rows, NUM_ENVS, -1) for name in names}


def host_run(config: ValueConfig, spec: EnvSpec, recorded: dict[str, np.ndarray]) -> tuple[HostLoop, np.ndarray]:
    places, chosen = iter(range(NUM_ENVS)), [[] for _ in range(NUM_ENVS)]

    def make() -> Recorded:
        place = next(places)
        rows = {name: array[:, place] for name, array in recorded.items()}
        return Recorded(spec, {n: a if "observation" in n else a[:, 0] for n, a in rows.items()}, chosen[place])

    gymnasium.registry.pop(NAME, None)
    entry_point: Any = make
    gymnasium.register(NAME, entry_point=entry_point, disable_env_checker=True)
    envs = make_host_envs(NAME, NUM_ENVS)
    loop = HostLoop(
        make_value_agent(config, envs.spec),
        envs,
        lambda count: make_host_envs(NAME, count),
        HostReplay(envs.spec, NUM_ENVS, config.replay, config.discount),
        make_pace(NUM_ENVS, config.update_every, config.target_every, config.learning_starts, config.batch_size),
        config.batch_size,
        config.replay.prioritized,
        config.clip_rewards,
        SEED,
        1,
    )
    loop.advance(STEPS, False, lambda: False)
    return loop, np.array(chosen).T


@pytest.mark.parametrize(
    ("preset", "replay"),
    [("qr-dqn", ReplayConfig(1000)), ("iqem-dqn", ReplayConfig(1000, n_step=3, prioritized=True))],
    ids=["uniform", "prioritized three-step"],
)
def test_both_loops_make_the_same_updates_from_the_same_transitions(tiny, preset, replay):
    config = replace(
        tiny(preset),
        replay=replay,
        network=NetworkConfig(widths=(16,)),
        exploration=EpsilonGreedy(final=0.2, over_steps=200),
        learning_starts=FIRST_UPDATE,
        target_every=160,
    )
    compiled = compiled_run(config)
    recorded = transitions(compiled)
    assert recorded["terminated"].sum() > 3
    assert (recorded["truncated"] & ~recorded["terminated"]).sum() > 3
    host, chosen = host_run(config, compiled.env.spec, recorded)

    np.testing.assert_array_equal(chosen, recorded["action"][..., 0])
    assert len(np.unique(chosen)) == 2
    beginning = jax.jit(compiled.algorithm.init)(host.keys.init).params
    ours, theirs = compiled.state.agent, host.agent
    for part in ("params", "learning", "frozen"):
        pairs = zip(jax.tree.leaves(getattr(ours, part)), jax.tree.leaves(getattr(theirs, part)), strict=True)
        for one, other in pairs:
            np.testing.assert_allclose(one[0], other, rtol=1e-5, atol=2e-6, err_msg=part)
    for first, last in zip(jax.tree.leaves(beginning), jax.tree.leaves(theirs.params), strict=True):
        assert np.abs(first - last).max() > 1e-2  # there was something to disagree about
    state = jax.tree.map(lambda leaf: leaf[0], compiled.state.replay)
    sample = jax.jit(compiled.replay.sample)
    for number in range(20):
        bits = np.asarray(host.keys.bits(jnp.int32(1000 + number), 32))
        batch, indices = host.replay.sample(bits)
        other, others = sample(state, jnp.asarray(bits), jnp.int32(STEPS // NUM_ENVS))
        np.testing.assert_array_equal(indices, others)
        np.testing.assert_allclose(batch.weight, other.weight, rtol=1e-4)
        np.testing.assert_allclose(batch.reward, other.reward, rtol=1e-5)
