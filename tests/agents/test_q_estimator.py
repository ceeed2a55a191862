"""What agents remember to estimate V from, against brute force; heads, EMA networks and snapshots."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from benchmarks.iterations import SPECS, random_batch
from qemrl.agents.agent import AgentState, InspectableAgent, View
from qemrl.agents.presets import PRESETS, AgentConfig, make_agent
from qemrl.agents.q_estimator import GRID, MOMENTS_EVERY, Prediction, QEstimator
from qemrl.agents.target_networks import EMA, Online, Snapshots
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.losses import quantile_innovations
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import (
    QEM,
    CountedVariance,
    CVaR,
    DecayingVariance,
    EmpiricalMean,
    EstimatedVariance,
    HeadsVariance,
    ResidualVariance,
    SparsityVariance,
    VarianceInputs,
    midpoints,
)
from qemrl.exploration import BonusExploration, EpsilonGreedy, QEMStdBonus
from qemrl.types import Batch

SPEC = SPECS["cartpole"]
BASE = ValueConfig(
    FixedQuantiles(8),
    exploration=EpsilonGreedy(evaluation=0.0),
    network=NetworkConfig(widths=(16,)),
    batch_size=16,
    learning_starts=100,
    target_every=40,
)
IMPLICIT = replace(BASE, representation=ImplicitQuantiles(8, 8, 8, num_cosines=8))


class Learner:
    """An agent whose programs are compiled once, and its states after 0, 1, 2, … updates."""

    def __init__(self, config: ValueConfig) -> None:
        self.config, self.agent = config, make_agent(config, SPEC)
        self.update, self.refresh = jax.jit(self.agent.update), jax.jit(self.agent.refresh_target)
        self.states: list[AgentState] = [jax.jit(self.agent.init)(jax.random.key(0))]
        self.batches: list[Batch] = []

    def step(self) -> None:
        """One update more from a batch of its own, with a new target network after each third."""
        number, state = len(self.batches), self.states[-1]
        self.batches.append(jax.device_put(random_batch(SPEC, self.config.batch_size, number % 4)))
        params, learning, _ = self.update(state, self.batches[-1], jax.random.key(number), jnp.int32(number))
        state = state._replace(params=params, optimizer=learning)
        self.states.append(state._replace(target=self.refresh(state)) if number % 3 == 2 else state)


make_learner = cache(Learner)


def learned(config: ValueConfig, updates: int) -> tuple[InspectableAgent, AgentState, list[Batch]]:
    """An agent after some updates, and the batches that it learned from."""
    learner = make_learner(config)
    while len(learner.batches) < updates:
        learner.step()
    return learner.agent, learner.states[updates], learner.batches[:updates]


def curves(config: ValueConfig, network: Any, observation: Any) -> Array:
    """The quantiles [batch, members, actions, n] at report's levels."""
    representation = config.representation
    return representation.predict(network.head, network.torso(jnp.asarray(observation)), "report", None).values


def get_qem(config: AgentConfig) -> QEM:
    assert isinstance(config.estimator, QEM)
    return config.estimator


def test_most_agents_remember_nothing():
    assert learned(BASE, 1)[1].params.estimator is None
    assert learned(replace(BASE, estimator=QEM(2)), 1)[1].params.estimator is None


def test_time_is_that_of_the_last_update():
    config = replace(BASE, estimator=QEM(2, DecayingVariance(over_steps=50)))
    agent, state, batches = learned(config, 6)
    assert float(state.params.estimator.step) == 100 + 5 * BASE.update_every
    values = curves(config, state.params.network, batches[0].observation)
    expected = get_qem(config).mean(values, midpoints(8), None, VarianceInputs(step=120))
    np.testing.assert_allclose(agent.q_values(state.params, batches[0].observation), expected[:, 0], rtol=1e-5)
    late = get_qem(config).mean(values, midpoints(8), None, VarianceInputs(step=10**6))
    assert np.abs(np.asarray(late - expected)).max() > 1e-5


def test_counts_are_those_of_what_was_learned_from():
    spec = SPEC._replace(num_states=4)
    config = replace(BASE, estimator=QEM(2, CountedVariance()))
    agent = make_agent(config, spec)
    state, learn = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    rng, expected = np.random.default_rng(0), np.zeros((4, 2), int)
    for number in range(3):
        states, actions = rng.integers(4, size=16), rng.integers(2, size=16).astype(np.int32)
        seen = np.eye(4, dtype=np.float32)[states]
        batch = random_batch(spec, 16, number)._replace(observation=seen, action=actions)
        params, learning, _ = learn(state, batch, jax.random.key(number), jnp.int32(number))
        state = state._replace(params=params, optimizer=learning)
        np.add.at(expected, (states, actions), 1)
    np.testing.assert_array_equal(state.params.estimator.counts.visits, expected)
    everything = jnp.eye(4)
    values = curves(config, state.params.network, everything)
    visits = jnp.asarray(expected[:, None], jnp.float32)
    q = get_qem(config).mean(values, midpoints(8), None, VarianceInputs(visits=visits))
    np.testing.assert_allclose(agent.q_values(state.params, everything), q[:, 0], rtol=1e-5)


@pytest.mark.parametrize("base", [BASE, IMPLICIT], ids=["fixed", "implicit"])
def test_an_ema_network_follows_the_network_and_gives_the_slopes(base: ValueConfig):
    config = replace(base, estimator=QEM(2, SparsityVariance()))
    ema = learned(config, 0)[1].params.network
    for updates in (1, 2, 3):
        network = learned(config, updates)[1].params.network
        ema = jax.tree.map(lambda old, new: old + 5e-4 * (new - old), ema, network)
    agent, state, batches = learned(config, 3)
    for found, wanted in zip(jax.tree.leaves(state.params.estimator.ema), jax.tree.leaves(ema), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-7)
    values, other = (curves(config, each, batches[0].observation) for each in (state.params.network, ema))
    expected = get_qem(config).mean(values, midpoints(8), None, VarianceInputs(ema=other))
    np.testing.assert_allclose(agent.q_values(state.params, batches[0].observation), expected[:, 0], rtol=1e-4)


@pytest.mark.parametrize("model", [SparsityVariance(source="twin"), HeadsVariance(), HeadsVariance(full=True)], ids=str)
def test_v_is_estimated_from_the_other_heads(model: EstimatedVariance):
    config = replace(BASE, representation=FixedQuantiles(8, num_heads=3), estimator=QEM(2, model))
    agent, state, batches = learned(config, 4)
    seen = batches[0].observation
    values = np.asarray(curves(config, state.params.network, seen))
    assert values.shape == (16, 3, 2, 8)
    expected = []
    for member in range(3):
        heads = jnp.asarray(np.moveaxis(values, 1, -2))
        variance_inputs = VarianceInputs(twin=jnp.asarray(values[:, (member - 1) % 3]), heads=heads)
        expected.append(get_qem(config).mean(jnp.asarray(values[:, member]), midpoints(8), None, variance_inputs))
    np.testing.assert_allclose(agent.q_values(state.params, seen), np.mean(expected, axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("full", [False, True])
def test_moments_are_those_of_their_updates(full: bool):
    config = replace(BASE, estimator=QEM(2, ResidualVariance(full=full)), target_every=4 * 10**6)
    looks = []
    agent = make_agent(config, SPEC)
    state, learn = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    target = state.target
    for number in range(MOMENTS_EVERY + 1):
        batch = random_batch(SPEC, 16, number)
        if number % MOMENTS_EVERY == 0:
            own = np.asarray(curves(config, state.params.network, batch.observation))[:, 0]
            following = curves(config, target, batch.next_observation)[:, 0]
            # With moments as they are before the update, the greedy actions are those of the estimator.
            variance_state = state.params.estimator
            known = VarianceInputs(innovations=variance_state.innovations, curvature=variance_state.curvature)
            best = np.asarray(get_qem(config).mean(following, midpoints(8), None, known)).argmax(-1)
            goal = batch.reward[:, None] + batch.discount[:, None] * np.asarray(following)[np.arange(16), best]
            rows = jnp.asarray(own[np.arange(16), batch.action])
            found = quantile_innovations(rows, jnp.asarray(midpoints(8), jnp.float32), jnp.asarray(goal, jnp.float32))
            moves = np.asarray(found.innovations)
            products = moves.T @ moves / 16 if full else (moves**2).mean(0)
            looks.append((products, np.asarray(found.curvature).mean(0)))
        params, learning, _ = learn(state, batch, jax.random.key(number), jnp.int32(number))
        state = state._replace(params=params, optimizer=learning)
    assert len(looks) == 2  # the first replaces what was there, the second counts half
    variance_state = state.params.estimator
    np.testing.assert_allclose(variance_state.innovations, (looks[0][0] + looks[1][0]) / 2, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(variance_state.curvature, (looks[0][1] + looks[1][1]) / 2, rtol=1e-3, atol=1e-6)


def test_moments_of_drawn_levels_are_kept_on_a_grid():
    config = replace(IMPLICIT, estimator=QEM(2, ResidualVariance()))
    agent, state, batches = learned(config, 11)
    variance_state = state.params.estimator
    assert variance_state.innovations.shape == variance_state.curvature.shape == (GRID,)
    assert (np.asarray(variance_state.innovations) > 0).all()
    dist = agent.predict_distribution(state.params, batches[0].observation)
    estimate_q = QEstimator(config.estimator, config.representation)
    variance_inputs = estimate_q._inputs(dist, Prediction(dist), variance_state)
    assert variance_inputs.curvature is not None
    expected = np.interp(midpoints(8), midpoints(GRID), variance_state.curvature)
    np.testing.assert_allclose(variance_inputs.curvature, expected, rtol=1e-5)


def test_an_ema_network_acts():
    config = replace(BASE, averaging=EMA(0.1), estimator=QEM(2))
    agent, state, batches = learned(config, 5)
    seen = batches[0].observation
    ema = curves(config, state.params.ema, seen)
    q = get_qem(config).mean(ema, midpoints(8))
    np.testing.assert_allclose(agent.q_values(state.params, seen), q[:, 0], rtol=1e-5)
    view = View(jnp.asarray(seen), None, jnp.zeros(16, bool))
    actions, _ = agent.act(state.params, agent.init_actor(16), view, jnp.int32(10**6), jax.random.key(0), True)
    np.testing.assert_array_equal(actions, np.asarray(q)[:, 0].argmax(-1))
    fast = get_qem(config).mean(curves(config, state.params.network, seen), midpoints(8))
    assert np.abs(np.asarray(fast - q)).max() > 1e-4


@pytest.mark.parametrize("preset", ["dqn", "c51", "qr-dqn", "iqn"])
def test_snapshots_are_the_last_target_networks(preset: str):
    config = PRESETS[preset].configure("classic")
    assert isinstance(config, ValueConfig)
    config = replace(config, averaging=Snapshots(2), network=NetworkConfig(widths=(16,)), batch_size=16)
    networks = [learned(config, updates)[1].params.network for updates in (3, 6)]
    _, state, batches = learned(config, 6)
    for found, old, new in zip(*(jax.tree.leaves(each) for each in (state.target, *networks)), strict=True):
        np.testing.assert_array_equal(found, np.stack([new, old]))
    seen = jnp.asarray(batches[0].observation)
    representation = config.representation

    def evaluate(network: Any) -> Any:
        return representation.predict(network.head, network.torso(seen), "target", jax.random.key(1))

    found, parts = config.averaging.predict(state.target, evaluate), [evaluate(network) for network in networks]
    np.testing.assert_allclose(found.values, np.mean([part.values for part in parts], axis=0), atol=1e-5)
    np.testing.assert_allclose(found.levels, np.mean([part.levels for part in parts], axis=0), atol=1e-5)
    if found.probs is not None:
        np.testing.assert_allclose(found.probs, np.mean([part.probs for part in parts], axis=0), atol=1e-5)


def test_an_average_of_equal_snapshots_learns_what_one_does():
    """Before the first refresh all snapshots are the first network."""
    one, many = (learned(replace(BASE, averaging=each), 2)[1].params.network for each in (Online(), Snapshots(3)))
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(BASE, estimator=QEM(2, HeadsVariance())), "num_heads"),
        (lambda: replace(BASE, estimator=QEM(2, SparsityVariance(source="twin"))), "num_heads"),
        (lambda: replace(IMPLICIT, estimator=QEM(2, ResidualVariance(full=True))), "full=False"),
        (lambda: replace(BASE, estimator=QEM(2, SparsityVariance()), averaging=EMA()), "use Online"),
        (lambda: QEMStdBonus(QEM(2, SparsityVariance())), "no VarianceInputs"),
        (lambda: replace(PRESETS["dsac-mlp"].configure("classic"), estimator=QEM(2, CountedVariance())), "continuous"),
        (lambda: replace(PRESETS["dsac-mlp"].configure("classic"), estimator=QEM(2, SparsityVariance())), "twin"),
        (lambda: EMA(0.0), "rate"),
        (lambda: Snapshots(1), "two snapshots"),
        (lambda: FixedQuantiles(8, num_heads=0), "num_heads"),
    ],
)
def test_what_cannot_be_known_is_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_measure_of_risk_decides_by_itself():
    config = replace(BASE, estimator=QEM(2, ResidualVariance()))
    agent, state, batches = learned(config, 3)
    seen = batches[0].observation
    values = curves(config, state.params.network, seen)
    expected = np.asarray(CVaR(0.3).mean(values, midpoints(8)))[:, 0].argmax(-1)
    np.testing.assert_array_equal(agent.greedy_action(state.params, seen, None, CVaR(0.3)), expected)
    assert np.isfinite(list(agent.metrics(state.params, seen).values())).all()


def test_a_bonus_goes_with_an_estimated_v():
    config = replace(BASE, estimator=QEM(2, ResidualVariance()), exploration=BonusExploration(QEMStdBonus(QEM(2))))
    agent, state, batches = learned(config, 1)
    view = View(jnp.asarray(batches[0].observation), None, jnp.zeros(16, bool))
    actions, _ = agent.act(state.params, agent.init_actor(16), view, jnp.int32(10**6), jax.random.key(0), False)
    assert actions.shape == (16,)


CONTINUOUS = [DecayingVariance(over_steps=50), SparsityVariance(source="twin"), ResidualVariance(full=True)]


@pytest.mark.parametrize("model", CONTINUOUS, ids=str)
def test_v_is_estimated_from_the_other_critics(model: EstimatedVariance):
    config = PRESETS["dsac-mlp"].configure("classic")
    network = replace(config.network, policy_widths=(16,), critic_widths=(16,), critic_hidden=())
    config = replace(config, representation=FixedQuantiles(8), network=network, estimator=QEM(2, model))
    spec = SPECS["half-cheetah"]
    agent = make_agent(config, spec)
    state, learn = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    batch, first = jax.device_put(random_batch(spec, 16, 0)), state
    for number in range(2):
        params, learning, update = learn(state, batch, jax.random.key(number), jnp.int32(number))
        state = state._replace(params=params, optimizer=learning)
        assert np.isfinite(update.loss)
    dist = agent.predict_distribution(state.params, batch.observation)
    values, variance_state = np.asarray(dist.values)[:, :, 0], state.params.estimator
    members = []
    for member in range(2):
        variance_inputs = VarianceInputs(
            step=variance_state.step,
            twin=jnp.asarray(values[:, 1 - member]),
            heads=jnp.asarray(values),
            innovations=variance_state.innovations,
            curvature=variance_state.curvature,
        )
        members.append(get_qem(config).mean(jnp.asarray(values[:, member]), midpoints(8), None, variance_inputs))
    expected = np.min(members, axis=0)
    np.testing.assert_allclose(np.asarray(agent.q_values(state.params, batch.observation))[:, 0], expected, atol=1e-4)
    plain = np.min(EmpiricalMean().mean(values, midpoints(8)), axis=1)
    assert np.abs(expected - plain).max() > 1e-6
    if variance_state.curvature is not None:
        assert np.abs(np.asarray(variance_state.curvature - first.params.estimator.curvature)).max() > 1e-3
