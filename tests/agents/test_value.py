"""The value agent: Bellman targets by hand, where the estimator counts and where it does not, weights and clipping."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.agents.agent import AgentState, View
from qemrl.agents.optimizer import AdamConfig
from qemrl.agents.value import NetworkConfig, ValueAgent, ValueConfig
from qemrl.distributional.atoms import Scalar
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import QEM, EmpiricalMean
from qemrl.exploration import EpsilonGreedy
from qemrl.types import Batch, EnvSpec

SPEC = EnvSpec("toy", (1,), "float32", 2)
PLAIN = ValueConfig(
    representation=Scalar(),
    network=NetworkConfig(widths=()),
    exploration=EpsilonGreedy(0.0, 0.0, evaluation=0.0),
    optimizer=AdamConfig(0.1),
)
KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def quick_compilation() -> Iterator[None]:
    """Programs run once here: XLA need not make them fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@lru_cache
def prepared(config: ValueConfig, spec: EnvSpec = SPEC):
    """An agent, a state of it, and its update, compiled once for each configuration."""
    agent = ValueAgent(config, spec)
    return agent, jax.jit(agent.init)(KEY), jax.jit(lambda s, b, k: agent.update(s, b, k, jnp.int32(0)))


def network(fresh: AgentState, outputs):
    """Parameters of a network without torso layers that gives `outputs` [actions, n] times the observation."""
    outputs = np.asarray(outputs, np.float32)
    params = fresh.params
    weight, bias = jax.tree.leaves(params)
    assert weight.shape == (outputs.size, 1)
    leaves = [jnp.asarray(outputs.reshape(-1, 1)), jnp.zeros_like(bias)]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def batch(reward, discount, mask=None, weight=None, action=None) -> Batch:
    """Transitions from observation 1 to observation 1."""
    count = len(reward)
    ones = jnp.ones((count, 1), jnp.float32)
    action = np.zeros(count) if action is None else action
    return Batch(
        ones,
        jnp.asarray(action, jnp.int32),
        jnp.asarray(reward, jnp.float32),
        jnp.asarray(discount, jnp.float32),
        ones,
        None if mask is None else jnp.asarray(mask),
        jnp.ones(count, jnp.float32) if weight is None else jnp.asarray(weight, jnp.float32),
    )


def learned(config, online, target, transitions, spec=SPEC):
    """Parameters, loss and losses of one update, with the weights [outputs] of the only layer."""
    _, fresh, program = prepared(config, spec)
    state = AgentState(network(fresh, online), fresh.optimizer, network(fresh, target).network)
    params, _, update = program(state, transitions, KEY)
    weight = np.asarray(jax.tree.leaves(params)[0]).reshape(np.shape(online))
    return weight, float(update.loss), np.asarray(update.priorities) ** 2


def acted(config: ValueConfig, outputs) -> int:
    """The action at observation 1."""
    agent, fresh, _ = prepared(config)
    view = View(jnp.ones((1, 1)), None, jnp.ones(1, bool))
    return int(agent.act(network(fresh, outputs), (), view, jnp.int32(0), KEY, False)[0][0])


def huber(error):
    return np.where(np.abs(error) <= 1, error**2 / 2, np.abs(error) - 0.5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_the_bellman_target_of_two_actions(double, masked):
    """Online Q = (1, 0.5), target Q = (2, 3). The target network's greedy action is 1, worth 3; the online network's is
    0, worth 2 by the target network. Where action 1 or 0 is forbidden, the other is what is left. Discounts 0 and ½.
    """
    rewards, discounts = [0.25, 0.25, 0.25], [0.5, 0.0, 0.5]
    mask = [[True, False], [True, True], [False, True]] if masked else None
    best = 2.0 if double else 3.0
    nexts = np.array([2.0, 0.0, 3.0] if masked else [best, 0.0, best])
    targets = 0.25 + np.array(discounts) * nexts
    transitions = batch(rewards, discounts, mask)
    spec = SPEC._replace(has_mask=masked)
    _, loss, losses = learned(replace(PLAIN, double=double), [[1.0], [0.5]], [[2.0], [3.0]], transitions, spec)
    np.testing.assert_allclose(losses, huber(targets - 1.0), rtol=1e-5)
    assert loss == pytest.approx(huber(targets - 1.0).mean(), rel=1e-5)


def test_a_discount_of_zero_makes_the_reward_the_target():
    """Whatever the target network says."""
    for target in ([[2.0], [3.0]], [[-50.0], [70.0]]):
        _, _, losses = learned(PLAIN, [[1.0], [0.5]], target, batch([1.5, 1.0], [0.0, 0.0]))
        np.testing.assert_allclose(losses, [0.125, 0], atol=1e-7)


def test_only_the_online_values_of_the_actions_taken_are_moved():
    """Nothing flows into the target, also when the online network chooses its action."""
    for double in (False, True):
        weight, *_ = learned(replace(PLAIN, double=double), [[1.0], [0.5]], [[2.0], [3.0]], batch([0.0], [0.9]))
        assert weight[0, 0] > 1.05  # the target is 1.8 or 2.7
        assert weight[1, 0] == 0.5


SKEWED = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0])
"""Quantiles of mean 1; QEM of order 4 sees a long tail in them."""


def test_qem_changes_the_greedy_action_where_it_disagrees_with_the_mean_and_nothing_else():
    """A constant between the mean 1 and the QEM of the skewed quantiles: the estimators order the two differently."""
    representation = FixedQuantiles(8)
    levels = (np.arange(8) + 0.5) / 8
    qem = QEM(order=4)
    skewed = float(qem.mean(SKEWED, levels))
    assert skewed > 1.1  # w₈ · 8 with the weight 0.1587 of the golden values
    assert skewed == pytest.approx(8 * 0.158713, rel=1e-5)
    constant = np.full(8, (1 + skewed) / 2)
    outputs = np.stack([constant, SKEWED])
    configs = {"mean": replace(PLAIN, representation=representation)}
    configs["qem"] = replace(configs["mean"], estimator=qem)
    acts, losses, weights = {}, {}, {}
    for name, config in configs.items():
        acts[name] = acted(config, outputs)
        # Forbidding an action leaves both estimators the same one: then all else must be the same.
        mask = [[True, False], [False, True], [True, True]]
        online = outputs[::-1] + 0.5
        spec = SPEC._replace(has_mask=True)
        transitions = batch([0.1, 0.2, 0.3], [0.9, 0.9, 0.9], mask)
        _, _, losses[name] = learned(config, online, outputs, transitions, spec)
        forced = transitions._replace(weight=jnp.array([1.0, 1.0, 0.0]))
        weights[name], *_ = learned(config, online, outputs, forced, spec)
    assert acts == {"mean": 0, "qem": 1}
    np.testing.assert_array_equal(losses["mean"][:2], losses["qem"][:2])
    np.testing.assert_array_equal(weights["mean"], weights["qem"])
    assert losses["mean"][2] != losses["qem"][2]


def test_a_transition_of_weight_zero_gives_no_gradient():
    """The first pulls action 0 up, the second action 1 down."""
    both = batch([3.0, -3.0], [0.0, 0.0], action=[0, 1])
    for weight, moved in (([1, 1], [True, True]), ([1, 0], [True, False]), ([0, 1], [False, True])):
        found, _, losses = learned(PLAIN, [[1.0], [1.0]], [[0.0], [0.0]], both._replace(weight=jnp.float32(weight)))
        assert (found[:, 0] != 1).tolist() == moved
        np.testing.assert_allclose(losses, [1.5, 3.5], rtol=1e-6)  # priorities do not know of weights


def test_the_loss_is_weighted():
    _, loss, _ = learned(PLAIN, [[1.0], [1.0]], [[0.0], [0.0]], batch([3.0, -3.0], [0, 0], weight=[0.5, 0.25]))
    assert loss == pytest.approx((0.5 * 1.5 + 0.25 * 3.5) / 2)


def test_long_gradients_are_scaled_down_to_the_norm():
    """Adam's first step is η g / (|g| + ε). The Huber gradient of the weight and of the bias is −1 each, its norm √2.

    With ε = 1 the step is ½ η; cut to norm 0.1, g is 0.1/√2 and the step η · 0.0707 / 1.0707. A limit of 2 is not met.
    """
    for limit, share in ((None, 0.5), (2.0, 0.5), (0.1, 0.1 / np.sqrt(2) / (1 + 0.1 / np.sqrt(2)))):
        config = replace(PLAIN, optimizer=AdamConfig(0.01, 1.0, limit))
        weight, *_ = learned(config, [[1.0], [1.0]], [[0.0], [0.0]], batch([30.0], [0.0]))
        assert weight[0, 0] - 1 == pytest.approx(0.01 * share, rel=1e-3)


@dataclass(frozen=True)
class LastQuantile(EmpiricalMean):
    """An estimate that no mean gives: the last quantile."""

    def mean(self, values, levels, probs=None):
        del levels, probs
        return values[..., -1]


def test_acting_and_the_target_know_q_through_the_estimator_alone():
    """Quantiles (0, 0, 9) and (4, 4, 4): the mean prefers the second action, the last quantile the first."""
    outputs = [[0.0, 0.0, 9.0], [4.0, 4.0, 4.0]]
    acts, qs, losses = [], [], []
    for estimator in (EmpiricalMean(), LastQuantile()):
        config = replace(PLAIN, representation=FixedQuantiles(3), estimator=estimator)
        agent, fresh, _ = prepared(config)
        acts.append(acted(config, outputs))
        qs.append(np.asarray(agent.q_values(network(fresh, outputs), jnp.ones((1, 1)))).tolist())
        losses.append(learned(config, outputs, outputs, batch([0.0], [1.0]))[1])
    assert acts == [1, 0]
    assert qs == [[[3.0, 4.0]], [[9.0, 4.0]]]
    # From (0, 0, 9) to itself, or to three fours: by the first estimator the latter is the target.
    assert losses[0] != losses[1]


def test_an_estimator_that_knows_nothing_leaves_the_first_action():
    @dataclass(frozen=True)
    class Nothing(EmpiricalMean):
        def mean(self, values, levels, probs=None):
            del levels, probs
            return jnp.zeros(values.shape[:-1])

    chosen = [acted(replace(PLAIN, estimator=each), [[1.0], [2.0]]) for each in (EmpiricalMean(), Nothing())]
    assert chosen == [1, 0]


class Enough(Exception):  # noqa: N818 - it is no error
    """Ends an update when all levels are drawn."""


def test_levels_of_the_greedy_action_the_target_and_the_loss_are_three_draws_for_each_row():
    """Keys are not differentiated, so outside of `jit` the levels of an update are numbers that can be noted."""
    seen: dict[str, np.ndarray] = {}

    @dataclass(frozen=True)
    class Noted(ImplicitQuantiles):
        def predict(self, head, features, purpose, key):
            dist = super().predict(head, features, purpose, key)
            seen[purpose] = np.asarray(dist.levels)
            return dist

        def loss(self, head, features, actions, target, key):
            del actions, target
            # `loss` and `predict` draw as many levels from a key in the same way.
            seen["loss"] = np.asarray(super().predict(head, features, "target", key).levels)
            raise Enough

    agent = ValueAgent(replace(PLAIN, representation=Noted(4, 4, 4, num_cosines=2)), SPEC)
    with pytest.raises(Enough):
        agent.update(agent.init(KEY), batch([0.0] * 3, [0.9] * 3), KEY, jnp.int32(0))
    assert set(seen) == {"act", "target", "loss"}
    assert all(levels.shape == (3, 1, 1, 4) for levels in seen.values())
    assert len(np.unique(np.concatenate(list(seen.values())))) == 36
