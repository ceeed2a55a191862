"""Counts: exact and hashed ones against a dictionary, and what they add to rewards in both loops."""

from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.agents.value import NetworkConfig
from qemrl.distributional.atoms import Scalar
from qemrl.exploration import ActionContext, BonusExploration, CountBonus, LinearDecay
from qemrl.exploration.counts import Counts, state_index
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.config import RunConfig, configure
from qemrl.training.loops import make_loop
from qemrl.training.threads import HostLoops
from qemrl.types import EnvSpec, Part, ReturnDist

FIVE_STATES = EnvSpec("five cells", (5,), "bool", 3, num_states=5)


def context(observation, q, step=0) -> ActionContext:
    q = jnp.asarray(q, jnp.float32)[:, None]
    return ActionContext(observation, ReturnDist(q[..., None], np.array([0.5])), q, None, jnp.zeros(len(q), bool), step)


def test_discrete_observations_are_counted_exactly():
    bonus, rng, seen = CountBonus(offset=0.01, reward=0.5), np.random.default_rng(0), Counter()
    state = bonus.init(2, FIVE_STATES)
    assert state.visits.shape == (5, 3)
    for _ in range(50):
        cells, actions = rng.integers(5, size=2), rng.integers(3, size=2)
        observation = jnp.asarray(np.eye(5, dtype=bool)[cells])
        expected = [[(seen[cell, action] + 0.01) ** -0.5 for action in range(3)] for cell in cells]
        np.testing.assert_allclose(bonus(state, context(observation, np.zeros((2, 3)))), expected, rtol=1e-5)
        state = bonus.update(state, context(observation, np.zeros((2, 3))), jnp.asarray(actions))
        pairs = list(zip(cells.tolist(), actions.tolist(), strict=True))
        seen.update(pairs)
        np.testing.assert_allclose(state.reward, [0.5 * (seen[pair] + 0.01) ** -0.5 for pair in pairs], rtol=1e-5)


@pytest.mark.parametrize(
    ("spec", "center"),
    [
        (
            EnvSpec("bounded", (3,), "float32", 2, observation_low=(0.0, -1.0, 0.0), observation_high=(10.0, 1.0, 4.0)),
            [5.0, 0.0, 2.0],
        ),
        (EnvSpec("unbounded", (3,), "float32", 2), [0.0, 0.0, 0.0]),
        (EnvSpec("board", (3, 1, 1), "bool", 2), [0.5, 0.5, 0.5]),
        (EnvSpec("picture", (1, 3, 1), "uint8", 2), [127.5, 127.5, 127.5]),
    ],
)
def test_other_observations_are_counted_by_the_signs_of_projections(spec, center):
    bonus, rng, seen = CountBonus(bits=4), np.random.default_rng(0), Counter()
    state = bonus.init(1, spec)
    assert state.visits.shape == (16, 2)
    places = set()
    for _ in range(200):
        drawn = rng.normal(size=(1, *spec.observation_shape)) * 3 + 1
        observation = (drawn > 0) if spec.observation_dtype == "bool" else drawn.astype(np.float32)
        if spec.observation_dtype == "uint8":
            observation = rng.integers(256, size=drawn.shape).astype(np.uint8)
        signs = (observation.reshape(1, 3) - np.asarray(center)) @ np.asarray(state.projection, np.float64) > 0
        place, action = int(signs[0] @ 2 ** np.arange(4)), int(rng.integers(2))
        places.add(place)
        now = context(jnp.asarray(observation), [[0.0, 0.0]])
        expected = [[(seen[place, a] + 0.01) ** -0.5 for a in range(2)]]
        np.testing.assert_allclose(bonus(state, now), expected, rtol=1e-5)
        state = bonus.update(state, now, jnp.asarray([action]))
        seen[place, action] += 1
    assert len(places) > 3


def test_observations_of_several_parts_are_counted_by_their_values():
    parts = (Part(("a",), (1, 2, 1), "uint8"), Part(("b",), (2,), "float32"), Part(("c",), (1,), "bool"))
    spec = EnvSpec("parts", (11,), "uint8", 2, parts=parts)
    state = CountBonus(bits=8).init(1, spec)
    image, vector, flag = np.array([0, 255], np.uint8), np.array([0.3, -7.0], np.float32), np.array([True])
    stored = np.frombuffer(image.tobytes() + vector.tobytes() + flag.tobytes(), np.uint8)
    signs = np.array([-1, 1, 0.3, -7, 0.5]) @ np.asarray(state.projection, np.float64) > 0
    assert int(state_index(state, jnp.asarray(stored[None]))[0]) == signs @ 2 ** np.arange(8)


def test_what_was_never_tried_is_tried_first_and_evaluation_counts_nothing():
    exploration = BonusExploration(CountBonus(), LinearDecay(1.0, 1.0), evaluation=0.0)
    state = exploration.init(1, FIVE_STATES)
    here = jnp.asarray(np.eye(5, dtype=bool)[[2]])
    now = context(here, [[0.5, 0.0, 0.2]], jnp.int32(10))
    chosen = []
    for number in range(3):
        best, unchanged = exploration.select_action(state, now, jax.random.key(number), True)
        assert int(best[0]) == 0
        assert unchanged is state
        actions, state = exploration.select_action(state, now, jax.random.key(number), False)
        chosen.append(int(actions[0]))
    assert chosen == [0, 2, 1]
    assert isinstance(state, Counts)
    np.testing.assert_array_equal(state.visits[2], [1, 1, 1])
    assert state.visits.sum() == 3


def run(env: str, reward: float) -> RunConfig:
    config = configure("dqn", env, 240)
    agent = replace(
        config.agent,
        representation=Scalar(),
        exploration=BonusExploration(CountBonus(reward=reward), LinearDecay(0.1, 0.1), random_steps=0),
        network=NetworkConfig(widths=(8,)),
        replay=replace(config.agent.replay, capacity=400),
        learning_starts=40,
        batch_size=8,
    )
    return replace(config, agent=agent, evaluation_episodes=1, log_every=120, evaluate_every=240, checkpoint_every=240)


def stored(loop: CompiledLoop | HostLoops) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of observations, actions and rewards in replay, in the order of steps."""
    arrays = loop.arrays()
    if isinstance(loop, HostLoops):
        observation, action, reward = (arrays[f"0/replay/{name}"] for name in ("observation", "action", "reward"))
    else:
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[0], loop.state.replay)
        observation, action, reward = rows.observation[:240], rows.action[:240], rows.reward[:240]
    return observation.reshape(240, -1).argmax(-1), action.reshape(-1)[:240], reward.reshape(-1)[:240]


@pytest.mark.parametrize("env", ["jax/chain-10", "FrozenLake-v1"])
def test_the_count_bonus_is_in_the_rewards_that_are_learned_from_and_not_in_returns(env):
    for beta in (0.0, 0.5):
        loop = make_loop(run(env, beta))
        records = loop.advance(120, False, lambda: False)
        assert records is not None
        assert loop.advance(240, False, lambda: False) is not None
        places, actions, learned = stored(loop)
        seen: Counter = Counter()
        earned = []
        for pair in zip(places.tolist(), actions.tolist(), strict=True):
            seen[pair] += 1
            earned.append(beta * (seen[pair] + 0.01) ** -0.5)
        rewards = np.round(learned - np.array(earned), 4)
        assert set(rewards.tolist()) <= {0.0, 0.001, 1.0}
        if env == "jax/chain-10":  # six episodes of 19 steps
            assert records[0]["rollout/ep_rew_mean"] == pytest.approx(rewards[: 6 * 19].sum() / 6, abs=1e-5)


def test_counts_are_part_of_a_checkpoint_and_go_on_from_it():
    config = run("jax/chain-10", 0.5)
    whole, first = make_loop(config), make_loop(config)
    for until in (120, 240):
        whole.advance(until, False, lambda: False)
    first.advance(120, False, lambda: False)
    again = make_loop(config)
    again.restore(120, first.arrays(), first.meta())
    again.advance(240, False, lambda: False)
    expected, found = whole.arrays(), again.arrays()
    assert any("visits" in name for name in expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
