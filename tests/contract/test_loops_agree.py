"""From the same transitions both loops make the same updates, and choose the same actions.

The compiled loop runs first. A Gymnasium environment then plays its transitions again, whatever the actions, to the
host loop. Both loops are the real ones.
"""

from collections.abc import Callable
from dataclasses import replace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mixed_probes import mixed_probes
from small_loops import compiled_loop, host_loop, tiny

from qemrl.agents.actor_critic_config import ActorCriticConfig, ActorCriticNetworkConfig
from qemrl.agents.agent import AgentState
from qemrl.agents.presets import AgentConfig
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.envs.jax.env import JaxEnv, limit_time
from qemrl.envs.jax.probes import BOX_PROBES
from qemrl.envs.jax.registry import make_jax_env
from qemrl.exploration import EpsilonGreedy
from qemrl.replay import ReplayConfig
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.host_loop import HostLoop
from qemrl.types import EnvSpec

NUM_ENVS, SEED, FIRST_UPDATE, UPDATES = 2, 7, 64, 100
STEPS = FIRST_UPDATE + 4 * UPDATES


class Recorded(gymnasium.Env):
    """Plays recorded transitions of one environment in their order, and notes the actions."""

    def __init__(self, spec: EnvSpec, rows: dict[str, np.ndarray], chosen: list[np.ndarray]) -> None:
        self.rows, self.chosen, self.now = rows, chosen, 0
        # The bounds are the JAX environment's: networks bring observations to [−1, 1] by them.
        low, high = (np.array(ends, np.float32) for ends in (spec.observation_low, spec.observation_high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        if spec.box is None:
            self.action_space = gymnasium.spaces.Discrete(spec.num_actions)
        else:
            low, high = (np.array(ends, np.float32) for ends in (spec.box.low, spec.box.high))
            self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        ended = self.now > 0 and (self.rows["terminated"][self.now - 1] or self.rows["truncated"][self.now - 1])
        if not ended:
            self.now = 0
        # After the last recorded step there is nothing to act on any more.
        return self.rows["observation"][min(self.now, len(self.rows["reward"]) - 1)], {}

    def step(self, action):
        self.chosen.append(np.array(action).reshape(-1))
        row = {name: array[self.now] for name, array in self.rows.items()}
        self.now += 1
        return row["next_observation"], float(row["reward"]), bool(row["terminated"]), bool(row["truncated"]), {}


def cartpole() -> JaxEnv:
    return limit_time(make_jax_env("jax/cartpole"), 15)  # some episodes end by falling, some by the limit


def probes() -> JaxEnv:
    return mixed_probes(tuple(BOX_PROBES))  # the sixth ends by a limit, the others do not


def hurried(preset: str, replay: ReplayConfig) -> AgentConfig:
    """The preset with so few steps that chance acts, chance and what was learned together, and that alone."""
    config = replace(tiny(preset), replay=replay, learning_starts=FIRST_UPDATE)
    match config:
        case ValueConfig():
            exploration = EpsilonGreedy(final=0.2, over_steps=200)
            return replace(config, network=NetworkConfig(widths=(16,)), exploration=exploration, target_every=160)
        case ActorCriticConfig():
            norm = config.network.layer_norm
            return replace(
                config,
                network=ActorCriticNetworkConfig("auto", (16,), (16,), (16,), norm),
                # A small ε of Adam makes steps of gradients that are nothing but rounding errors.
                optimizer=replace(config.optimizer, epsilon=1e-3),
                random_steps=200,
            )


def transitions(loop: CompiledLoop) -> dict[str, np.ndarray]:
    """All transitions of the run, [rows, envs, ...]: the replay is large enough to hold them."""
    replay, rows = loop.state.replay, STEPS // NUM_ENVS
    names = ("observation", "next_observation", "action", "reward", "terminated", "truncated")
    return {name: np.asarray(getattr(replay, name))[0, :rows].reshape(rows, NUM_ENVS, -1) for name in names}


def host_run(config: AgentConfig, spec: EnvSpec, recorded: dict[str, np.ndarray]) -> tuple[HostLoop, np.ndarray]:
    places, chosen = iter(range(NUM_ENVS)), [[] for _ in range(NUM_ENVS)]

    def make() -> Recorded:
        place = next(places)
        rows = {name: array[:, place] for name, array in recorded.items()}
        return Recorded(spec, {n: a if "observation" in n else a[:, 0] for n, a in rows.items()}, chosen[place])

    loop = host_loop(config, make, NUM_ENVS, SEED)
    loop.advance(STEPS, False, lambda: False)
    return loop, np.array(chosen).swapaxes(0, 1)


@pytest.mark.parametrize(
    ("preset", "make", "replay"),
    [
        ("qr-dqn", cartpole, ReplayConfig(1000)),
        ("iqem-dqn", cartpole, ReplayConfig(1000, n_step=3, prioritized=True)),
        ("tqc", probes, ReplayConfig(1000)),
        ("td3", probes, ReplayConfig(1000)),
        ("dsac-iqn", probes, ReplayConfig(1000, n_step=3, prioritized=True)),
    ],
    ids=["qr-dqn", "iqem-dqn prioritized three-step", "tqc", "td3", "dsac-iqn prioritized three-step"],
)
def test_both_loops_make_the_same_updates_from_the_same_transitions(
    preset: str, make: Callable[[], JaxEnv], replay: ReplayConfig
):
    """Whatever loops tell agents apart by is there: levels that are drawn, policies that wait, a temperature."""
    config = hurried(preset, replay)
    compiled = compiled_loop(config, make(), NUM_ENVS, (SEED,), 1)
    compiled.advance(STEPS, False)
    recorded = transitions(compiled)
    assert recorded["terminated"].sum() > 3
    assert (recorded["truncated"] & ~recorded["terminated"]).sum() > 3
    host, chosen = host_run(config, compiled.env.spec, recorded)

    # Numbers of actions are the same; what a policy gives differs as its parameters do.
    np.testing.assert_allclose(chosen, recorded["action"], rtol=0, atol=1e-5)
    assert len(np.unique(chosen)) > 1
    beginning = jax.jit(compiled.agent.init)(host.keys.init).params
    ours, theirs = compiled.state.agent, host.agent_state
    for part in AgentState._fields:
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
