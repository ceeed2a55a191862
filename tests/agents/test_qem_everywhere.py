"""QEM and risk measures on every representation, against formulas in NumPy from what the network gives."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial import hermite_e
from scipy import special

from benchmarks.iterations import SPECS, random_batch
from qemrl.agents.agent import AgentState, View
from qemrl.agents.value import NetworkConfig, ValueAgent, ValueConfig
from qemrl.agents.value_presets import VALUE_PRESETS
from qemrl.cli.runs import NOT_SETTINGS, read_options
from qemrl.distributional.atoms import Categorical
from qemrl.distributional.bootstrap import Bootstrapped
from qemrl.distributional.expectiles import Expectiles, impute
from qemrl.distributional.fractions import ProposedFractions
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.monotone import NonCrossingQuantiles, NonDecreasingQuantiles, SplineQuantiles
from qemrl.distributional.particles import Particles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import QEM, CVaR
from qemrl.exploration import EpsilonGreedy
from qemrl.training.config import configure

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPEC, KEY, ROWS = SPECS["cartpole"], jax.random.key(3), 6
SMALL = {
    "fqf": ProposedFractions(7, num_cosines=4),
    "fqf-uniform": ImplicitQuantiles(7, 7, 7, "midpoints", "midpoints", num_cosines=4),
    "nc-qr-dqn": NonCrossingQuantiles(7),
    "ndqfn": NonDecreasingQuantiles(7, 6, 6, num_cosines=4),
    "spl-dqn": SplineQuantiles(7, num_bins=3),
    "cr-dqn": FixedQuantiles(7, 0.0, loss_function="cramer"),
    "bootstrapped-qr-dqn": Bootstrapped(FixedQuantiles(7), 3),
    "mmd-dqn": Particles(7),
    "er-dqn": Expectiles(7),
    "er-dqn-naive": Expectiles(7, imputation=False),
    "c51": Categorical(7, -3.0, 3.0),
}
"""The representation of each preset, with seven of whatever it has."""


def small(preset: str) -> ValueConfig:
    config = VALUE_PRESETS[preset]("classic")
    exploration = EpsilonGreedy(0.0, 0.0, evaluation=0.0)
    return replace(
        config,
        representation=SMALL[preset],
        estimator=QEM(order=4),
        exploration=exploration,
        network=NetworkConfig(widths=(5,)),
        batch_size=ROWS,
    )


@cache
def prepared(preset: str) -> tuple[ValueAgent, AgentState]:
    """An agent whose outputs are ten times as large as at first, so that distributions are far from flat."""
    agent = ValueAgent(small(preset), SPEC)
    state = jax.jit(agent.init)(KEY)
    network = state.params.network
    head = jax.tree.map(lambda leaf: 10 * leaf, network.head)
    return agent, state._replace(params=state.params._replace(network=type(network)(network.torso, head)))


def observation() -> jax.Array:
    return jnp.asarray(random_batch(SPEC, ROWS, 0).observation)


@cache
def raw(preset: str) -> tuple[np.ndarray, ...]:
    """What the network gives [batch, members, actions, n], its levels and the probabilities, in double precision."""
    agent, state = prepared(preset)
    report = jax.jit(lambda params, seen: agent.predict(params, seen, "report", None).dist)
    values, levels, probs = report(state.params, observation())
    shape = values.shape
    probs = np.full(shape, 1 / shape[-1]) if probs is None else probs
    return tuple(np.broadcast_to(np.asarray(each, float), shape) for each in (values, levels, probs))


def reached(atoms: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """As many quantiles at midpoints as seven, of one distribution on atoms in increasing order."""
    wanted = (np.arange(7) + 0.5) / 7
    shares = np.cumsum(probs / probs.sum())
    return np.array([atoms[min(np.searchsorted(shares, level), len(atoms) - 1)] for level in wanted])


def by_rows(function: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    flat = [function(*rows) for rows in zip(*(each.reshape(-1, each.shape[-1]) for each in arrays), strict=True)]
    return np.array(flat).reshape(*arrays[0].shape[:-1], *np.shape(flat[0]))


def as_quantiles(preset: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, levels and probabilities that QEM is to see."""
    values, levels, probs = raw(preset)
    if preset == "er-dqn":
        atoms, shares = impute(values, np.linspace(0.01, 0.99, 7))
        values = by_rows(reached, atoms, shares)
    elif preset == "c51":
        values = by_rows(reached, values, probs)
    elif preset in ("mmd-dqn", "er-dqn-naive", "cr-dqn"):
        values = np.sort(values, axis=-1)
    else:
        return values, levels, probs
    return values, np.broadcast_to((np.arange(7) + 0.5) / 7, values.shape), np.full(values.shape, 1 / 7)


def fit(values: np.ndarray, levels: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """The intercept of the regression on He_0 … He_3 of Φ⁻¹(τ), each value counted by its probability."""
    design, root = hermite_e.hermevander(special.ndtri(levels), 3), np.sqrt(probs)
    return np.linalg.lstsq(design * root[:, None], values * root, rcond=None)[0][0]


@pytest.mark.parametrize("preset", SMALL)
def test_q_is_the_intercept_of_the_fit_and_actions_go_by_it(preset):
    agent, state = prepared(preset)
    expected = by_rows(fit, *as_quantiles(preset)).mean(1)
    found = np.asarray(jax.jit(agent.q_values)(state.params, observation()))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
    values, _, probs = raw(preset)
    plain = values[..., 3].mean(1) if preset == "er-dqn" else np.sum(values * probs, axis=-1).mean(1)
    assert np.abs(found - plain).max() > 1e-2 * np.abs(expected).max()
    view = View(observation(), None, jnp.zeros(ROWS, bool))
    act = jax.jit(lambda params: agent.act(params, (), view, jnp.int32(0), KEY, True)[0])
    actions = act(state.params)
    gap = np.abs(np.diff(expected, axis=-1))[:, 0] > 5e-3 * np.abs(expected).max()
    np.testing.assert_array_equal(np.asarray(actions)[gap], expected.argmax(-1)[gap])
    assert gap.sum() > 3


def test_fractions_and_grids_are_fitted_at_their_own_levels_with_their_own_shares():
    """Proposed intervals are read in their middles and count by their widths, the same for all actions of a state."""
    _, levels, probs = raw("fqf")
    np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(levels, np.cumsum(probs, axis=-1) - probs / 2, atol=1e-6)
    assert (levels[:, :, :1] == levels).all()
    assert np.ptp(probs, axis=-1).min() > 0.005  # so much that shares of 1/N would be seen
    assert np.ptp(probs, axis=0).max() > 0.01
    _, levels, probs = raw("ndqfn")
    np.testing.assert_allclose(levels[0, 0, 0], [0.001, *np.arange(1, 7) / 7, 0.999], rtol=1e-6)
    curve = np.square(levels[0, 0, 0])
    area = 0.001 * curve[0] + np.trapezoid(curve, levels[0, 0, 0]) + 0.001 * curve[-1]
    assert probs[0, 0, 0] @ curve == pytest.approx(area, rel=1e-6)


@pytest.mark.parametrize("preset", ["c51", "fqf"])
def test_levels_of_shares_that_are_added_up_are_levels(preset):
    """Whoever reads a distribution again, with an estimator that looks at its input, must be able to."""
    _, levels, _ = raw(preset)
    assert 0 <= levels.min() < levels.max() <= 1


def lowest_quarter(atoms: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """The mean of the quarter of the mass that lies lowest."""
    order = np.argsort(atoms)
    below = np.minimum(np.cumsum(probs[order] / probs.sum()), 0.25)
    return np.diff(below, prepend=0) @ atoms[order] / 0.25


@pytest.mark.parametrize("preset", ["mmd-dqn", "er-dqn", "c51", "fqf", "nc-qr-dqn"])
def test_risk_is_that_of_the_distribution_that_is_held(preset):
    """Of particles in order, of the imputed distribution, of atoms and of intervals with their shares."""
    values, _, probs = raw(preset)
    if preset == "er-dqn":
        values, probs = impute(values, np.linspace(0.01, 0.99, 7))
    if preset == "fqf":  # what crosses stays in the order of its levels
        expected = by_rows(lambda v, p: np.diff(np.minimum(np.cumsum(p), 0.25), prepend=0) @ v / 0.25, values, probs)
    else:
        expected = by_rows(lowest_quarter, values, probs)
    expected = expected.mean(1)
    agent, state = prepared(preset)
    averse = ValueAgent(replace(agent.config, estimator=CVaR(0.25)), SPEC)
    found = jax.jit(averse.q_values)(state.params, observation())
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
    choose = jax.jit(lambda params: agent.greedy_action(params, observation(), None, CVaR(0.25)))
    chosen = choose(state.params)
    gap = np.abs(np.diff(expected, axis=-1))[:, 0] > 5e-3 * np.abs(expected).max()
    np.testing.assert_array_equal(np.asarray(chosen)[gap], expected.argmax(-1)[gap])


@pytest.mark.parametrize("preset", ["fqf", "er-dqn", "bootstrapped-qr-dqn"])
def test_an_update_goes_on_from_the_action_that_qem_prefers(preset):
    """Compiled, with n-step discounts of some; the loss is finite, and the first surprise is that of the target."""
    agent, state = prepared(preset)
    batch = jax.device_put(random_batch(SPEC, ROWS, 1))._replace(next_observation=observation())
    params, _, update = jax.jit(agent.update)(state, batch, KEY, jnp.int32(0))
    assert np.isfinite(float(update.loss))
    changed = [bool((old != new).any()) for old, new in zip(*map(jax.tree.leaves, (state.params, params)), strict=True)]
    assert np.mean(changed) > 0.8
    # The target network is that of `prepared` here, whose estimates are known.
    target = jax.jit(lambda params: agent.bellman_target(params, params.network, batch, KEY).values)
    goal = target(state.params)
    estimates = by_rows(fit, *as_quantiles(preset))
    values = impute(raw(preset)[0], np.linspace(0.01, 0.99, 7))[0] if preset == "er-dqn" else raw(preset)[0]
    best = estimates.argmax(-1)
    following = np.take_along_axis(values, best[..., None, None], axis=2)[:, :, 0]
    expected = np.asarray(batch.reward)[:, None, None] + np.asarray(batch.discount)[:, None, None] * following
    sure = (np.abs(np.diff(estimates, axis=-1))[..., 0] > 5e-3 * np.abs(estimates).max()).nonzero()
    np.testing.assert_allclose(np.asarray(goal)[sure], expected[sure], rtol=2e-3, atol=2e-3 * np.abs(expected).max())
    assert len(sure[0]) > 3


def from_words(preset: str, words: str) -> Any:
    return configure(preset, "CartPole-v1", 1000, overrides=read_options(shlex.split(words), NOT_SETTINGS)).agent


@pytest.mark.parametrize("preset", SMALL)
def test_words_give_qem_and_risk_to_every_preset_that_has_a_distribution(preset):
    plain = VALUE_PRESETS[preset]("classic")
    assert from_words(preset, "--estimator qem") == replace(plain, estimator=QEM(order=4))
    assert from_words(preset, "--estimator cvar --estimator.level 0.1") == replace(plain, estimator=CVaR(0.1))


@pytest.mark.parametrize(
    ("preset", "words", "said"),
    [
        ("dqn", "", "QEM needs quantiles, and Scalar has none; use EmpiricalMean with it"),
        ("hl-gauss", "", "QEM needs quantiles, and GaussianHistogram has none"),
        ("bootstrapped-dqn", "", "QEM needs quantiles, and Bootstrapped has none"),
        (
            "spl-dqn",
            "--representation.mean exact",
            "QEM needs quantiles, and SplineQuantiles with mean='exact' has none",
        ),
        ("spl-dqn", "--representation.num-quantiles 3", "at least 4 quantiles, got num_quantiles=3"),
        ("nc-qr-dqn", "--representation.num-quantiles 3", "at least 4 quantiles, got num_quantiles=3"),
        ("fqf", "--representation.num-fractions 3", "at least 4 quantiles, got num_fractions=3"),
        ("ndqfn", "--representation.num-levels 3", "at least 4 quantiles, got num_levels=3"),
        ("mmd-dqn", "--representation.num-particles 3", "at least 4 quantiles, got num_particles=3"),
        (
            "er-dqn",
            "--estimator.order 6 --representation.num-expectiles 5",
            "at least 6 quantiles, got num_expectiles=5",
        ),
        ("c51", "--representation.num-atoms 3", "at least 4 quantiles, got num_atoms=3"),
        ("bootstrapped-qr-dqn", "--representation.head.num-quantiles 3", "4 quantiles, got head.num_quantiles=3"),
    ],
)
def test_qem_is_refused_with_the_reason_where_there_is_nothing_to_fit(preset, words, said):
    from_words(preset, words.replace("--estimator.order 6", ""))
    with pytest.raises(ValueError, match=said):
        from_words(preset, f"--estimator qem {words}")


@pytest.mark.parametrize("preset", ["dqn", "hl-gauss", "bootstrapped-dqn"])
def test_one_number_has_no_risk(preset):
    with pytest.raises(ValueError, match=r"CVaR needs a return distribution, and .* has none"):
        from_words(preset, "--estimator cvar")
