"""Munchausen targets: by hand for two actions, at their limits, by which network, and where they are refused."""

import re
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.iterations import SPECS, random_batch
from qemrl.agents.agent import AgentState
from qemrl.agents.presets import make_agent
from qemrl.agents.target_networks import EMA, Snapshots
from qemrl.agents.value import NetworkConfig, ValueAgent, ValueConfig
from qemrl.agents.value_presets import m_iqn
from qemrl.distributional.atoms import Categorical, Scalar
from qemrl.distributional.bootstrap import Bootstrapped
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.training.config import configure
from qemrl.training.loops import make_loop
from qemrl.types import Batch, EnvSpec, UnsupportedEnvironment

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPEC, KEY = EnvSpec("toy", (1,), "float32", 2), jax.random.key(0)
SOFT = ValueConfig(
    Scalar(), network=NetworkConfig(widths=()), munchausen=True, munchausen_weight=0.8, munchausen_temperature=0.5
)
REWARD, DISCOUNT = 0.25, 0.9


@cache
def fresh(config: ValueConfig) -> tuple[ValueAgent, AgentState]:
    agent = ValueAgent(config, SPEC)
    return agent, agent.init(KEY)


def network(config: ValueConfig, outputs: Any) -> Any:
    """One that gives `outputs` [actions, n] times the observation."""
    template = fresh(config)[1].params.network
    leaves, structure = jax.tree.flatten(template)
    weight, bias = leaves
    column = np.asarray(outputs, np.float32).reshape(weight.shape)
    return jax.tree.unflatten(structure, [jnp.asarray(column), jnp.zeros_like(bias)])


def transitions(here: float = 1.0, following: float = 1.0, discount: float = DISCOUNT) -> Batch:
    """Both actions, each from an observation to the next."""
    column, pair = jnp.ones((2, 1), jnp.float32), jnp.ones(2, jnp.float32)
    actions = jnp.array([0, 1], jnp.int32)
    return Batch(here * column, actions, REWARD * pair, discount * pair, following * column, None, pair)


def targets(config: ValueConfig, online: Any, target: Any, batch: Batch) -> np.ndarray:
    """The values [action taken, atoms] of the target."""
    agent, state = fresh(config)
    params = state.params._replace(network=network(config, online))
    return np.asarray(agent.bellman_target(params, network(config, target), batch, KEY).values)[:, 0]


def log_policy(q: Any, temperature: float) -> np.ndarray:
    return np.asarray(q, float) / temperature - np.log(np.sum(np.exp(np.asarray(q, float) / temperature)))


def test_the_target_of_two_actions_by_hand():
    """Target Q = (1, 1.5) here and twice that behind; τ = 0.5, α = 0.8, r = 0.25, γ = 0.9.

    Here log π = −log(1 + e^{±1}): τ log π is −0.6566 and −0.1566. Behind π is 1/(1 + e^{±2}): 0.1192 and 0.8808, and
    Σ π (Q − τ log π) = τ log Σ exp(Q/τ) = 3.0635.
    """
    found = targets(SOFT, [[9.0], [-9.0]], [[1.0], [1.5]], transitions(following=2.0))
    np.testing.assert_allclose(found[:, 0], 0.25 + 0.8 * np.array([-0.65663, -0.15663]) + 0.9 * 3.06346, atol=1e-4)
    ended = targets(SOFT, [[9.0], [-9.0]], [[1.0], [1.5]], transitions(following=2.0, discount=0.0))
    np.testing.assert_allclose(ended[:, 0], 0.25 + 0.8 * np.array([-0.65663, -0.15663]), atol=1e-4)


def soft_quantiles(curves: Any, weight: float, temperature: float, floor: float = -1.0) -> np.ndarray:
    """Σ_a π(a) (θ(a) − τ log π(a)) level by level, with the reward of each action taken, from curves [actions, n]."""
    curves = np.asarray(curves, float)
    logs = log_policy(curves.mean(-1), temperature)
    behind = np.sum(np.exp(logs)[:, None] * (curves - temperature * logs[:, None]), axis=0)
    rewards = REWARD + weight * np.clip(temperature * logs, floor, 0)
    return rewards[:, None] + DISCOUNT * behind


CURVES = [[0.0, 1.0, 4.0], [1.0, 1.5, 2.0]]


def test_quantiles_are_averaged_over_the_policy_level_by_level():
    config = replace(SOFT, representation=FixedQuantiles(3))
    found = targets(config, CURVES[::-1], CURVES, transitions())
    np.testing.assert_allclose(found, soft_quantiles(CURVES, 0.8, 0.5), rtol=1e-4)
    agent, state = fresh(config)
    goal = agent.bellman_target(state.params, network(config, CURVES), transitions(), KEY)
    assert goal.probs is None
    np.testing.assert_allclose(goal.levels, (np.arange(3) + 0.5) / 3)


def test_each_member_has_a_policy_of_its_own():
    config = replace(SOFT, representation=Bootstrapped(FixedQuantiles(3), 2))
    agent, state = fresh(config)
    single = replace(SOFT, representation=FixedQuantiles(3))
    heads = tuple(network(single, each).head for each in (CURVES, [[3.0, 3.0, 3.0], [0.0, 0.0, 0.5]]))
    target = replace_heads(state.target, heads)
    goal = agent.bellman_target(state.params, target, transitions(), KEY)
    np.testing.assert_allclose(goal.values[:, 0], soft_quantiles(CURVES, 0.8, 0.5), rtol=1e-4)
    np.testing.assert_allclose(goal.values[:, 1], soft_quantiles([[3, 3, 3], [0, 0, 0.5]], 0.8, 0.5), rtol=1e-4)


def replace_heads(whole: Any, heads: tuple[Any, ...]) -> Any:
    return type(whole)(whole.torso, type(whole.head)(heads, whole.head.priors))


def test_distributions_on_atoms_are_mixed_in_the_shares_of_the_policy():
    """A mixture of all atoms of all actions, each moved by what its action earns beside the return: −τ log π."""
    config = replace(SOFT, representation=Categorical(3, -1.0, 1.0))
    agent, state = fresh(config)
    shares = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])
    goal = agent.bellman_target(state.params, network(config, np.log(shares)), transitions(), KEY)
    support = np.array([-1.0, 0.0, 1.0])
    logs = log_policy(shares @ support, 0.5)
    for row, action in enumerate((0, 1)):
        reward = REWARD + 0.8 * 0.5 * logs[action]
        atoms = reward + DISCOUNT * (support[None] - 0.5 * logs[:, None])
        assert goal.probs is not None
        np.testing.assert_allclose(goal.values[row, 0], atoms.ravel(), rtol=1e-4)
        np.testing.assert_allclose(goal.probs[row, 0], (np.exp(logs)[:, None] * shares).ravel(), rtol=1e-4)


def test_the_log_probability_that_is_rewarded_stops_at_the_floor():
    """Q = (0, 4) and τ = 0.5: τ log π of action 0 is −4.0002, which counts as the floor; of action 1 it is −0.0002."""
    for floor, extra in ((-1.0, -1.0), (-0.25, -0.25), (-10.0, -4.00017), (0.0, 0.0)):
        config = replace(SOFT, munchausen_floor=floor)
        found = targets(config, [[0.0], [0.0]], [[0.0], [4.0]], transitions(discount=0.0))
        np.testing.assert_allclose(found[0, 0], REWARD + 0.8 * extra, atol=1e-4)
        assert found[1, 0] == pytest.approx(REWARD, abs=2e-4)


@pytest.mark.parametrize("representation", [Scalar(), FixedQuantiles(3)], ids=["scalar", "quantiles"])
def test_without_weight_at_a_temperature_near_zero_the_target_is_the_ordinary_one(representation):
    """A policy that is sure of the greedy action has no entropy."""
    outputs = CURVES if representation == FixedQuantiles(3) else [[1.0], [1.5]]
    soft = replace(SOFT, representation=representation, munchausen_weight=0.0, munchausen_temperature=1e-4)
    hard = ValueConfig(representation, network=SOFT.network)
    one, other = (targets(config, [each[::-1] for each in outputs], outputs, transitions()) for config in (soft, hard))
    np.testing.assert_allclose(one, other, rtol=1e-5)
    warm = targets(replace(soft, munchausen_temperature=0.5), outputs, outputs, transitions())
    assert (warm > other + 0.05).any()


def test_the_policy_is_that_of_the_target_network_alone():
    batch = transitions()
    found, again = (targets(SOFT, online, [[1.0], [1.5]], batch) for online in ([[9.0], [0.0]], [[0.0], [9.0]]))
    np.testing.assert_array_equal(found, again)
    other = targets(SOFT, [[9.0], [0.0]], [[1.5], [1.0]], batch)
    np.testing.assert_allclose(other, found[::-1], rtol=1e-6)
    assert abs(found[0, 0] - found[1, 0]) == pytest.approx(0.8 * 0.5, rel=1e-4)  # α times the difference of the Q


def test_implicit_quantiles_have_the_target_of_their_curve_whatever_levels_are_drawn():
    """Curves without a slope are the same at all levels: then the target is that of numbers."""
    config = replace(SOFT, representation=ImplicitQuantiles(4, 3, 5, num_cosines=2))
    agent, state = fresh(config)
    head = state.target.head
    leaves, structure = jax.tree.flatten(head)
    flat = [jnp.zeros((1, 2)), jnp.ones(1), jnp.asarray([[1.0], [1.5]]), jnp.zeros(2)]
    assert [leaf.shape for leaf in leaves] == [leaf.shape for leaf in flat]
    target = type(state.target)(state.target.torso, jax.tree.unflatten(structure, flat))
    goal = agent.bellman_target(state.params, target, transitions(), KEY)
    assert goal.values.shape == (2, 1, 3)
    expected = targets(SOFT, [[0.0], [0.0]], [[1.0], [1.5]], transitions())
    np.testing.assert_allclose(goal.values[:, 0], np.broadcast_to(expected, (2, 3)), rtol=1e-4)


GOLDEN = [1.381728, 1.206978, 1.306671, 1.355991, 1.310204, 2.028791, 1.725883, 1.439034]


def test_losses_of_the_preset_are_the_golden_ones():
    """Those of the other presets are in tests/contract, where actions are masked."""
    config = replace(
        m_iqn("classic"), network=NetworkConfig(widths=(16,)), representation=ImplicitQuantiles(8, 8, 8, num_cosines=8)
    )
    agent = make_agent(config, SPECS["cartpole"])
    learn, state, losses = jax.jit(agent.update), agent.init(KEY), []
    for number in range(8):
        batch = random_batch(SPECS["cartpole"], 32, number)
        params, learning, update = learn(state, batch, jax.random.key(number), jnp.int32(number))
        state = AgentState(params, learning, params.network if number == 3 else state.target)
        losses.append(float(update.loss))
    np.testing.assert_allclose(losses, GOLDEN, rtol=1e-3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"double": True}, "Munchausen targets have no greedy action that another network could choose: no double"),
        ({"averaging": EMA()}, "no greedy action that another network could choose"),
        ({"munchausen_temperature": 0.0}, "munchausen_temperature must be positive, got 0.0"),
        ({"munchausen_temperature": float("inf")}, "munchausen_temperature must be positive, got inf"),
        ({"munchausen_weight": 1.5}, "munchausen_weight must be between 0 and 1, got 1.5"),
        ({"munchausen_weight": -0.1}, "munchausen_weight must be between 0 and 1, got -0.1"),
        ({"munchausen_floor": 0.5}, "munchausen_floor must be finite and not positive, got 0.5"),
        ({"munchausen_floor": -float("inf")}, "munchausen_floor must be finite and not positive, got -inf"),
        ({"munchausen": False}, "munchausen_weight, munchausen_temperature is for Munchausen targets: switch them on"),
        (
            {"munchausen": False, "munchausen_weight": 0.9, "munchausen_temperature": 0.03, "munchausen_floor": -2.0},
            "munchausen_floor is for Munchausen targets: switch them on with munchausen=True (--munchausen)",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        replace(SOFT, **settings)


def test_where_actions_are_masked_the_agent_is_refused():
    masked = SPEC._replace(has_mask=True)
    with pytest.raises(UnsupportedEnvironment, match=r"toy says which actions are allowed.*leave munchausen off"):
        make_agent(SOFT, masked)
    ValueAgent(ValueConfig(Scalar(), network=SOFT.network), masked)


def test_snapshots_choose_by_their_mean():
    """The target network may be several: then Q is that of their mean."""
    config = replace(SOFT, averaging=Snapshots(2))
    agent, state = fresh(config)
    pair = [network(SOFT, [[1.0], [1.5]]), network(SOFT, [[3.0], [-0.5]])]
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *pair)
    goal = agent.bellman_target(state.params, stacked, transitions(), KEY)
    expected = targets(SOFT, [[0.0], [0.0]], [[2.0], [0.5]], transitions())
    np.testing.assert_allclose(goal.values[:, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("env", ["CartPole-v1", "jax/cartpole"])
def test_the_preset_learns_in_both_loops_and_goes_on_from_a_checkpoint_bit_for_bit(env):
    """It is not among the contract suite's, whose probes mask an action."""
    settings = {
        "representation.num_levels": 4,
        "representation.num_target_levels": 4,
        "representation.num_acting_levels": 4,
        "network.widths": [8],
        "learning_starts": 20,
        "batch_size": 8,
    }
    config = replace(configure("m-iqn", env, 60, overrides=settings), log_every=60, evaluation_episodes=1)
    loop = make_loop(config)
    loop.advance(40, False)
    middle, meta = {name: np.array(array) for name, array in loop.arrays().items()}, loop.meta()
    loop.advance(60, False)
    last = {name: np.array(array) for name, array in loop.arrays().items()}
    assert loop.restore(40, middle, meta) == []
    loop.advance(60, False)
    for name, array in loop.arrays().items():
        np.testing.assert_array_equal(array, last[name], err_msg=name)
    learned = [name for name in last if "params" in name]
    assert learned
    assert all((last[name] != middle[name]).any() for name in learned)
