"""Bootstrapped heads: what each learns from and toward, masks, priors, and what is said of single members."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.iterations import SPECS, random_batch
from qemrl.agents.agent import AgentState
from qemrl.agents.value import NetworkConfig, ValueAgent, ValueConfig, WithPrior
from qemrl.distributional.atoms import Scalar
from qemrl.distributional.bootstrap import Bootstrapped, Heads
from qemrl.distributional.losses import huber, quantile_huber
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.distributional.representation import Representation
from qemrl.estimators import midpoints
from qemrl.exploration import HeadSampling
from qemrl.replay import DeviceReplay, HostReplay, ReplayConfig
from qemrl.types import Batch

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPEC, KEY = SPECS["cartpole"], jax.random.key(0)
HEADS, ROWS = 3, 6
QUANTILES, SCALAR = FixedQuantiles(4), Scalar()
BASE = ValueConfig(
    Bootstrapped(QUANTILES, HEADS),
    exploration=HeadSampling(),
    network=NetworkConfig(widths=(5,)),
    batch_size=ROWS,
    double=True,
)


def with_heads(
    head: Representation = QUANTILES, prior_scale: float = 0.0, mask_probability: float = 1.0
) -> ValueConfig:
    return replace(BASE, representation=Bootstrapped(head, HEADS, mask_probability, prior_scale))


PRIOR = with_heads(prior_scale=2.0)
CASES = [BASE, PRIOR, with_heads(SCALAR)]
IDS = ["quantiles", "priors", "scalar"]


@cache
def prepared(config: ValueConfig) -> tuple[ValueAgent, AgentState]:
    """An agent, and a state whose target network differs from the online one, but for what never learns."""
    agent = ValueAgent(config, SPEC)
    make = jax.jit(agent.init)
    state, other = make(KEY), make(jax.random.key(1)).target
    if isinstance(other.torso, WithPrior):
        own = state.target
        head = Heads(other.head.heads, own.head.priors)
        other = type(own)(WithPrior(other.torso.torso, own.torso.prior), head)
    return agent, state._replace(target=other)


def batch(mask: Any = None) -> Batch:
    drawn = jax.device_put(random_batch(SPEC, ROWS, 0))
    return drawn if mask is None else drawn._replace(member_mask=jnp.asarray(mask))


@cache
def compiled(config: ValueConfig) -> Callable[..., Any]:
    return jax.jit(jax.value_and_grad(prepared(config)[0].loss, has_aux=True))


def learned_from(config: ValueConfig, transitions: Batch) -> tuple[float, np.ndarray, Any]:
    """The agent's loss, that of each transition, and the gradient."""
    state = prepared(config)[1]
    (loss, (losses, _)), gradient = compiled(config)(state.params.network, state.params, state.target, transitions, KEY)
    return float(loss), np.asarray(losses), gradient


def gradient(config: ValueConfig, transitions: Batch) -> Any:
    return learned_from(config, transitions)[2]


def learned_torso(network: Any) -> Any:
    return network.torso.torso if isinstance(network.torso, WithPrior) else network.torso


def forward(config: ValueConfig, network: Any, place: int, observation: Any) -> jax.Array:
    """The values [batch, actions, n] of one head, with its prior, by the parts of the network."""
    assert isinstance(config.representation, Bootstrapped)
    values = network.head.heads[place](learned_torso(network)(observation), None)
    if not config.representation.has_prior:
        return values
    shift = network.head.priors[place](network.torso.prior(observation), None)
    return values + config.representation.prior_scale * jnp.broadcast_to(shift, values.shape)


def loss_of_one(config: ValueConfig, place: int, network: Any, goal: jax.Array, transitions: Batch) -> jax.Array:
    """The mean loss of a network all of whose features are for one head."""
    values = forward(config, network, place, transitions.observation)
    values = jnp.take_along_axis(values, transitions.action[:, None, None], axis=1)[:, 0]
    if values.shape[-1] == 1:
        losses = huber((goal[:, place] - values)[:, 0], 1.0)
    else:
        losses = quantile_huber(values, jnp.asarray(midpoints(4), jnp.float32), goal[:, place])
    return jnp.mean(transitions.weight * losses)


def require_near(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("config", CASES, ids=IDS)
def test_features_get_the_mean_of_the_heads_gradients_and_each_head_its_own(config):
    """1/K of the sum at the features; nothing is scaled in a head; a prior learns nothing."""
    (agent, state), transitions = prepared(config), batch()
    goal = agent.bellman_target(state.params, state.target, transitions, jax.random.split(KEY)[0])
    network = state.params.network

    @jax.jit
    def one_by_one(network, goal):
        slope = jax.grad(loss_of_one, argnums=2)
        return [slope(config, place, network, goal, transitions) for place in range(HEADS)]

    singles = one_by_one(network, goal.values)
    found = gradient(config, transitions)
    require_near(learned_torso(found), jax.tree.map(lambda *each: sum(each) / HEADS, *map(learned_torso, singles)))
    for place, single in enumerate(singles):
        require_near(found.head.heads[place], single.head.heads[place])
        assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(found.head.heads[place]))
    if isinstance(found.torso, WithPrior):
        fixed = jax.tree.leaves((found.torso.prior, found.head.priors))
        assert all((np.asarray(leaf) == 0).all() for leaf in fixed)
        assert len(fixed) == 2 + 2 * HEADS


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("config", CASES, ids=IDS)
def test_each_head_bootstraps_from_its_own_target_head_with_its_own_action(config, double):
    """The action is the one that the head itself prefers: as it is now with double, else as it was."""
    config = replace(config, double=double)
    agent, state = ValueAgent(config, SPEC), prepared(replace(config, double=True))[1]
    transitions = batch()
    goal = agent.bellman_target(state.params, state.target, transitions, KEY)
    chosen = []
    for place in range(HEADS):
        online, slow = (
            np.asarray(forward(config, network, place, transitions.next_observation))
            for network in (state.params.network, state.target)
        )
        actions = (online if double else slow).mean(-1).argmax(-1)
        chosen.append(actions)
        following = slow[np.arange(ROWS), actions]
        expected = np.asarray(transitions.reward)[:, None] + np.asarray(transitions.discount)[:, None] * following
        np.testing.assert_allclose(goal.values[:, place], expected, rtol=1e-4, atol=1e-5)
    assert len({tuple(actions) for actions in chosen}) > 1


MASK = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0]], bool)
"""The third head learns from nothing, the last transition teaches nobody."""


@pytest.mark.parametrize("config", [BASE, PRIOR], ids=IDS[:2])
def test_a_head_that_is_masked_out_learns_nothing_from_a_transition(config):
    """Each head has the gradient of transitions whose weight is its column of the mask, and features their mean."""
    found, transitions = gradient(config, batch(MASK)), batch()
    weighed = [gradient(config, transitions._replace(weight=jnp.float32(MASK[:, i]))) for i in range(HEADS)]
    for place in range(HEADS):
        require_near(found.head.heads[place], weighed[place].head.heads[place])
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(found.head.heads[2]))
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(found.head.heads[:2]))
    full, losses, _ = learned_from(config, transitions)
    masked, kept, _ = learned_from(config, batch(MASK))
    only = [learned_from(config, batch(MASK & (np.arange(HEADS) == i)))[1] for i in range(HEADS)]
    np.testing.assert_allclose(kept, np.sum(only, axis=0), rtol=1e-5)
    assert (kept == 0).tolist() == [False] * 5 + [True]  # the surprise of what teaches nobody is nothing
    assert (kept < losses).all()
    assert masked < full


def test_masks_that_say_yes_to_all_change_nothing():
    require_near(gradient(BASE, batch(np.ones((ROWS, HEADS), bool))), gradient(BASE, batch()))


@pytest.mark.parametrize("rate", [0.5, 0.1])
def test_masks_are_drawn_for_each_head_apart_as_often_as_asked(rate):
    agent = ValueAgent(with_heads(mask_probability=rate), SPEC)
    first, again, other = (np.asarray(agent.member_mask(4000, jax.random.key(seed))) for seed in (0, 0, 1))
    assert first.shape == (4000, HEADS)
    np.testing.assert_allclose(first.mean(0), rate, atol=4 * np.sqrt(rate * (1 - rate) / 4000))
    assert np.abs(np.corrcoef(first.T) - np.eye(HEADS)).max() < 0.07
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > rate / 2


@pytest.mark.parametrize("config", [BASE, replace(BASE, representation=FixedQuantiles(4, num_heads=3))])
def test_where_all_learn_from_all_nothing_is_drawn_or_stored(config):
    assert ValueAgent(config, SPEC).member_mask(4, KEY) is None
    assert config.num_masked == 0
    assert DeviceReplay(SPEC, 2, ReplayConfig(10), 0.9, config.num_masked).init().member_mask is None
    assert "member_mask" not in HostReplay(SPEC, 2, ReplayConfig(10), 0.9, config.num_masked).state()
    assert with_heads(mask_probability=0.5).num_masked == HEADS


def test_priors_are_part_of_q_and_never_change():
    """Q of a head is the mean of what it has learned plus β times its own prior; two updates move the first alone."""
    agent, state = prepared(PRIOR)
    learn, observation = jax.jit(agent.update), batch().observation
    params, learning = state.params, state.optimizer
    for number in range(2):
        params, learning, _ = learn(AgentState(params, learning, state.target), batch(), KEY, jnp.int32(number))
    before, after = state.params.network, params.network
    for one, other in ((before.torso.prior, after.torso.prior), (before.head.priors, after.head.priors)):
        for old, new in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(old, new)
    for one, other in ((before.torso.torso, after.torso.torso), (before.head.heads, after.head.heads)):
        assert all((old != new).any() for old, new in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    dist = agent.predict_distribution(params, observation)
    assert dist.values.shape == (ROWS, HEADS, 2, 4)
    shifts = []
    for place in range(HEADS):
        np.testing.assert_allclose(
            dist.values[:, place], forward(PRIOR, after, place, observation), rtol=1e-4, atol=1e-5
        )
        shifts.append(np.asarray(after.head.priors[place](after.torso.prior(observation), None)))
        assert np.std(shifts[-1]) > 0.01
    assert np.abs(shifts[0] - shifts[1]).max() > 0.05
    np.testing.assert_allclose(agent.q_values(params, observation), dist.values.mean((1, 3)), rtol=1e-4, atol=1e-5)


def test_without_a_scale_there_are_no_priors():
    for config, priors in ((BASE, 0), (PRIOR, HEADS)):
        network = prepared(config)[1].params.network
        assert isinstance(network.torso, WithPrior) == bool(priors)
        assert (len(network.head.heads), len(network.head.priors)) == (HEADS, priors)


def test_how_far_members_are_apart_is_reported_and_their_distributions_can_be_seen():
    agent, state = prepared(BASE)
    observation = batch().observation
    values = np.asarray(agent.predict_distribution(state.params, observation).values)
    metrics = agent.metrics(state.params, observation)
    assert float(metrics["dist/member_std"]) == pytest.approx(values.mean(-1).std(1).mean(), rel=1e-4)
    assert float(metrics["dist/member_std"]) > 0.01
    for place in range(HEADS):
        own = forward(BASE, state.params.network, place, observation)
        np.testing.assert_allclose(values[:, place], own, rtol=1e-4, atol=1e-5)
    alone = ValueAgent(ValueConfig(QUANTILES, network=BASE.network), SPEC)
    assert "dist/member_std" not in alone.metrics(jax.jit(alone.init)(KEY).params, observation)
