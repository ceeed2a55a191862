"""Expectiles and what is imputed from them, against roots that SciPy finds in their definition."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import optimize, stats

from qemrl.distributional.expectiles import Expectiles, expectile_levels, expectile_loss, impute
from qemrl.distributional.losses import backup
from qemrl.estimators import EmpiricalMean
from qemrl.networks.heads import ActionStreams, StreamConfig
from qemrl.tabular import expectile_fixed_point, expectiles, random_mdp
from qemrl.tabular.fixed_points import backup as tabular_backup
from qemrl.types import ReturnDist

K = 11
LEVELS = expectile_levels(K)
IMPUTE = jax.jit(lambda values: impute(values, LEVELS))
LOSS = jax.jit(expectile_loss)


def root(above: Any, mean: float, level: float, low: float, high: float) -> float:
    """Where τ E(Z − e)₊ = (1 − τ) E(e − Z)₊, given e ↦ E(Z − e)₊: E(e − Z)₊ is larger by e less the mean."""
    found: Any = optimize.brentq(
        lambda e: level * above(e) - (1 - level) * (above(e) + e - mean), low, high, xtol=1e-14
    )
    return found


def by_definition(atoms: np.ndarray, probs: np.ndarray, levels: np.ndarray = LEVELS) -> np.ndarray:
    """The expectiles of a distribution on atoms."""
    atoms, probs = np.asarray(atoms, np.float64), np.asarray(probs, np.float64)
    mean, ends = float(probs @ atoms), (atoms.min() - 1, atoms.max() + 1)
    return np.array([root(lambda e: probs @ np.maximum(atoms - e, 0), mean, level, *ends) for level in levels])


def discrete(atoms: list[float], probs: list[float]) -> np.ndarray:
    return by_definition(np.array(atoms), np.array(probs))


def smooth(above: Any, mean: float, low: float, high: float) -> np.ndarray:
    return np.array([root(above, mean, level, low, high) for level in LEVELS])


NORMAL: Any = stats.norm()
STUDENT: Any = stats.t(5)
LAWS = {
    "normal": smooth(lambda e: NORMAL.pdf(e) - e * NORMAL.sf(e), 0.0, -9, 9),
    "exponential": smooth(lambda e: np.exp(-e) if e > 0 else 1 - e, 1.0, -1, 30),
    "uniform": smooth(lambda e: np.clip(1 - e, 0, 1) ** 2 / 2 + max(-e, 0), 0.5, 0, 1),
    "t": smooth(lambda e: STUDENT.pdf(e) * (5 + e * e) / 4 - e * STUDENT.sf(e), 0.0, -50, 50),
    "coin": discrete([0, 1], [0.5, 0.5]),
    "rare": discrete([-100, 0, 1], [0.001, 0.5, 0.499]),
    "skewed": discrete([0, 0.1, 0.2, 30], [0.4, 0.3, 0.25, 0.05]),
    "point": np.full(K, 2.5),
}
VALUES = np.stack(list(LAWS.values()))
SIZES = np.maximum(np.ptp(VALUES, axis=1), 1)


@pytest.mark.parametrize("law", LAWS)
def test_an_imputed_distribution_has_the_expectiles_of_a_known_law(law):
    atoms, probs = impute(LAWS[law], LEVELS)
    assert atoms.shape == probs.shape == (K - 1,)
    assert probs.min() >= 0
    assert probs.sum() == pytest.approx(1, rel=1e-12)
    size = max(np.ptp(LAWS[law]), 1)
    np.testing.assert_allclose(by_definition(atoms, probs), LAWS[law], atol=1e-9 * size)
    assert probs @ atoms == pytest.approx(LAWS[law][K // 2], abs=1e-12 * size)


def test_in_jax_the_same_is_imputed_in_one_program():
    """Of all laws at once, in float32. Where the atoms of the least probability lie is not determined that well, but
    the expectiles are the right ones.
    """
    traces = 0

    @jax.jit
    def program(values: Any) -> Any:
        nonlocal traces
        traces += 1
        return impute(values, LEVELS)

    for values in (VALUES, -2 * VALUES[:, ::-1] + 1, np.zeros_like(VALUES)):
        atoms, probs = program(jnp.asarray(values, jnp.float32))
        assert atoms.shape == probs.shape == (len(VALUES), K - 1)
        np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)
        for row, x, p, size in zip(values, atoms, probs, SIZES, strict=True):
            np.testing.assert_allclose(by_definition(x, p / p.sum()), row, atol=1e-4 * size)
    assert traces == 1
    in_numpy = impute(VALUES, LEVELS)
    with jax.enable_x64(True):
        for found, expected in zip(impute(jnp.asarray(VALUES), LEVELS), in_numpy, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@given(st.integers(0, 2**32 - 1), st.floats(-50, 50), st.floats(0.1, 20))
def test_what_is_imputed_moves_and_stretches_with_the_expectiles(seed, shift, stretch):
    rng = np.random.default_rng(seed)
    values = expectiles(rng.normal(size=(2, 9)), rng.dirichlet(np.ones(9), 2), LEVELS)
    (atoms, probs), (moved, same) = impute(values, LEVELS), impute(shift + stretch * values, LEVELS)
    np.testing.assert_allclose(same, probs, atol=1e-7)
    weight = np.maximum(probs, 1e-12)  # the fewer samples an atom stands for, the less it matters where it is
    np.testing.assert_allclose(weight * moved, weight * (shift + stretch * atoms), atol=1e-6 * (stretch + abs(shift)))


def test_the_roots_of_the_definition_are_the_closed_form():
    rng = np.random.default_rng(1)
    atoms, probs = rng.normal(size=(5, 6)), rng.dirichlet(np.ones(6), 5)
    expected = [by_definition(*row) for row in zip(atoms, probs, strict=True)]
    np.testing.assert_allclose(expectiles(atoms, probs, LEVELS), expected, atol=1e-10)


ROWS = arrays.arrays(np.float32, (3, K), elements=st.floats(-1000, 1000, width=32))


@settings(max_examples=40)
@given(ROWS)
def test_whatever_the_network_says_something_with_the_middle_as_its_mean_is_imputed(values):
    """Expectiles that cross are sorted; they need not be those of any distribution."""
    atoms, probs = (np.asarray(part, np.float64) for part in IMPUTE(values))
    assert np.isfinite(atoms).all()
    assert np.isfinite(probs).all()
    assert probs.min() >= 0
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)
    spread = np.ptp(values, axis=1)
    middle = np.sort(values, axis=1)[:, K // 2]
    assert (np.abs((probs * atoms).sum(1) - middle) <= 1e-4 * spread + 1e-6 * np.abs(middle)).all()
    assert (np.abs(atoms - middle[:, None]).max(1) <= 205 * spread + 1e-3 * np.abs(middle)).all()
    again = IMPUTE(values[:, ::-1])
    np.testing.assert_array_equal(atoms, again[0])


# The loss


def by_loops(values: np.ndarray, targets: np.ndarray, probs: np.ndarray) -> float:
    total = 0.0
    for level, value in zip(LEVELS, values, strict=True):
        for target, prob in zip(targets, probs, strict=True):
            total += prob * ((1 - level) if target < value else level) * (target - value) ** 2
    return total


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_the_asymmetric_square_pair_by_pair(weighted):
    rng = np.random.default_rng(2)
    values, targets = rng.normal(size=(3, 2, K)), rng.normal(size=(3, 2, 6))
    probs = rng.dirichlet(np.ones(6), (3, 2)) if weighted else np.full((3, 2, 6), 1 / 6)
    given_probs = jnp.asarray(probs, jnp.float32) if weighted else None
    found = LOSS(*(jnp.asarray(each, jnp.float32) for each in (values, LEVELS, targets)), given_probs)
    expected = [[by_loops(values[b, m], targets[b, m], probs[b, m]) for m in range(2)] for b in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_loss_is_least_at_the_expectiles_and_nothing_else_learns():
    rng = np.random.default_rng(3)
    targets, probs = rng.normal(size=(4, 6)), rng.dirichlet(np.ones(6), 4)
    best = expectiles(targets, probs, LEVELS)

    def total(values: Any, targets: Any, probs: Any) -> Any:
        return expectile_loss(values, jnp.asarray(LEVELS), targets, probs).sum()

    with jax.enable_x64(True):
        program = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
        gradient, *others = program(*(jnp.asarray(each) for each in (best, targets, probs)))
        np.testing.assert_allclose(gradient, 0, atol=1e-12)
        above, *_ = program(*(jnp.asarray(each) for each in (best + 0.01, targets, probs)))
        below, *_ = program(*(jnp.asarray(each) for each in (best - 0.01, targets, probs)))
    assert (np.asarray(above) > 1e-5).all()
    assert (np.asarray(below) < -1e-5).all()
    assert all((np.asarray(each) == 0).all() for each in others)


# The representation


def make_streams(features: int, outputs: int, key) -> ActionStreams:
    return ActionStreams(StreamConfig((), False, False), features, 1, outputs, key)


def head_of(values: np.ndarray) -> ActionStreams:
    """One action whose outputs for the unit vector s are row s of `values`."""
    head = make_streams(len(values), K, jax.random.key(0))
    parts = (jnp.asarray(values.T, jnp.float32), jnp.zeros(K, jnp.float32))
    return eqx.tree_at(lambda each: (each.advantage.layers[0].weight, each.advantage.layers[0].bias), head, parts)


def targets_at(representation: Expectiles, values: np.ndarray, next_states: np.ndarray) -> ReturnDist:
    dist = representation.predict(head_of(values), jnp.eye(len(values))[next_states], "target", None)
    dist = dist._replace(values=dist.values[:, :, 0])
    return representation.convert(dist, "distribution")


def test_the_fixed_point_of_expectile_dynamic_programming_is_a_minimum_of_the_loss():
    """Of a small random process; without imputation it is none, for spreads shrink."""
    mdp = random_mdp(4, 1, 2, np.random.default_rng(4), 0.8)
    policy = np.zeros(4, dtype=np.int64)
    fixed = expectile_fixed_point(mdp, policy, K)
    step = tabular_backup(mdp, policy, 256)
    state, branch = np.nonzero(step.probs)
    rewards, discounts = (jnp.asarray(each[state, branch], jnp.float32) for each in (step.rewards, step.discounts))
    weights = jnp.asarray(step.probs[state, branch], jnp.float32)

    def gradient(representation: Expectiles) -> np.ndarray:
        target = targets_at(representation, fixed, step.next_states[state, branch])
        goal = backup(target, rewards, discounts)

        def total(head: Any) -> Any:
            features, actions = jnp.eye(4)[state], jnp.zeros(len(state), jnp.int32)
            return jnp.sum(weights * representation.loss(head, features, actions, goal, jax.random.key(0))[:, 0])

        return np.asarray(jax.grad(total)(head_of(fixed)).advantage.layers[0].weight)

    np.testing.assert_allclose(gradient(Expectiles(K)), 0, atol=1e-4 * np.ptp(fixed))
    assert np.abs(gradient(Expectiles(K, imputation=False))).max() > 1e-2 * np.ptp(fixed)


def test_q_is_the_middle_expectile():
    representation = Expectiles(K)
    dist = representation.predict(head_of(VALUES), jnp.eye(len(VALUES)), "act", None)
    q = EmpiricalMean().mean(*representation.convert(dist, "mean"))
    np.testing.assert_allclose(q[:, 0, 0], VALUES[:, K // 2], rtol=1e-6)
    values, _, probs = (np.asarray(part) for part in representation.convert(dist, "distribution"))
    np.testing.assert_allclose((values * probs).sum(-1)[:, 0, 0], VALUES[:, K // 2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("law", LAWS)
def test_levels_of_an_imputed_distribution_lie_between_zero_and_one(law):
    dist = ReturnDist(jnp.asarray(LAWS[law], jnp.float32)[None, None, None], LEVELS)
    _, levels, probs = Expectiles(K).convert(dist, "distribution")
    assert probs is not None
    np.testing.assert_allclose(levels, np.cumsum(probs, -1) - probs / 2, atol=1e-6)
    assert np.max(levels) <= 1


def test_the_naive_variant_takes_expectiles_for_samples():
    shuffled = VALUES[:, np.random.default_rng(5).permutation(K)]
    found = targets_at(Expectiles(K, imputation=False), shuffled, np.arange(len(VALUES)))
    np.testing.assert_allclose(found.values[:, 0], np.sort(VALUES, axis=1), rtol=1e-6)
    np.testing.assert_allclose(found.levels, (np.arange(K) + 0.5) / K)
    assert found.probs is None
