"""Representations: what they predict and lose, against cases worked out by hand through heads made by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.distributional.atoms import Categorical, Scalar
from qemrl.distributional.implicit import LEVEL_SAMPLERS, ImplicitHead, ImplicitQuantiles
from qemrl.distributional.losses import quantile_huber
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.distributional.representation import Purpose, select_action_distribution
from qemrl.estimators import QEM, EmpiricalMean
from qemrl.networks.heads import ActionStreams, StreamConfig
from qemrl.networks.layers import Linear
from qemrl.types import ReturnDist

KEY = jax.random.key(0)


def linear(weight, bias) -> Linear:
    """A layer with these weights."""
    layer = Linear(len(weight[0]), len(weight), KEY)
    leaves = [jnp.asarray(weight, jnp.float32), jnp.asarray(bias, jnp.float32)]
    assert [leaf.shape for leaf in jax.tree.leaves(layer)] == [leaf.shape for leaf in leaves]
    return jax.tree.unflatten(jax.tree.structure(layer), leaves)


def fixed_head(outputs) -> ActionStreams:
    """A head on one feature that gives `outputs` [actions, n] times the feature."""
    outputs = jnp.asarray(outputs, jnp.float32)
    num_actions, count = outputs.shape
    streams = ActionStreams(StreamConfig((), False, False), 1, num_actions, count, KEY)
    layer = linear(outputs.reshape(-1, 1), np.zeros(outputs.size))
    return jax.tree.unflatten(jax.tree.structure(streams), jax.tree.leaves(layer))


def implicit_head(amplitudes) -> ImplicitHead:
    """One feature and one action: θ(τ) = feature · ReLU(Σ_i amplitude_i cos(π i τ) + 10)."""
    embedding = linear([amplitudes], [10.0])
    return ImplicitHead(embedding, fixed_head([[1.0]]))


def target(values, probs=None) -> ReturnDist:
    values = jnp.asarray(values, jnp.float32)[:, None]
    probs = None if probs is None else jnp.asarray(probs, jnp.float32)[:, None]
    return ReturnDist(values, np.full(values.shape[-1], 0.5), probs)


ONE = jnp.ones((1, 1), jnp.float32)


def make_streams(features: int, outputs: int, key) -> ActionStreams:
    return ActionStreams(StreamConfig((4,), False, False), features, 3, outputs, key)


@pytest.mark.parametrize("purpose", ["act", "target", "report"])
@pytest.mark.parametrize(
    ("representation", "counts"),
    [
        (Scalar(), (1, 1, 1)),
        (Categorical(5), (5, 5, 5)),
        (FixedQuantiles(6), (6, 6, 6)),
        (ImplicitQuantiles(3, 4, 5, num_cosines=8), (5, 4, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_distributions_are_batch_members_actions_values(representation, counts, purpose):
    head = representation.make_head(make_streams, 7, KEY)
    dist = jax.jit(lambda: representation.predict(head, jnp.ones((2, 7)), purpose, jax.random.key(1)))()
    count = counts[["act", "target", "report"].index(purpose)]
    assert dist.values.shape == (2, 1, 3, count)
    assert dist.levels.shape[-1] == count
    assert np.broadcast_shapes(dist.levels.shape, dist.values.shape) == dist.values.shape
    assert (dist.probs is None) == (not isinstance(representation, Categorical))


def test_a_scalar_loses_the_huber_loss_of_its_error():
    """Q of the action taken is 2: errors 0.5 and −3 lose 0.5²/2 and 3 − 1/2; the other action is not looked at."""
    head = fixed_head([[100.0], [2.0]])
    features, actions = jnp.ones((2, 1)), jnp.array([1, 1], jnp.int32)
    losses = Scalar().loss(head, features, actions, target([[2.5], [-1.0]]), KEY)
    np.testing.assert_allclose(losses, [[0.125], [2.5]], rtol=1e-6)
    wide = Scalar(kappa=2.0).loss(head, features, actions, target([[2.5], [-1.0]]), KEY)
    np.testing.assert_allclose(wide, [[0.125], [2 * (3 - 1)]], rtol=1e-6)


def test_categories_have_softmax_probabilities_and_levels_in_the_middle_of_their_mass():
    representation = Categorical(3, -1.0, 1.0)
    head = fixed_head([np.log([1.0, 2.0, 1.0])])
    dist = representation.predict(head, ONE, "act", None)
    assert dist.probs is not None
    np.testing.assert_allclose(dist.values[0, 0, 0], [-1, 0, 1])
    np.testing.assert_allclose(dist.probs[0, 0, 0], [0.25, 0.5, 0.25], rtol=1e-6)
    np.testing.assert_allclose(dist.levels[0, 0, 0], [0.125, 0.5, 0.875], rtol=1e-6)


def test_however_peaked_categories_are_all_count():
    head = fixed_head([np.array([0.0, 300.0, -300.0])])
    dist = Categorical(3, -1.0, 1.0).predict(head, ONE, "report", None)
    assert dist.probs is not None
    assert (np.asarray(dist.probs) > 0).all()
    np.testing.assert_allclose(EmpiricalMean().mean(*(np.asarray(each) for each in dist)), 0, atol=1e-6)


def test_categories_lose_the_cross_entropy_against_the_projected_target():
    """Atoms −1, 0, 1 with probabilities ¼, ½, ¼. The target has ½ at 0.5, which goes to 0 and 1 in halves, and ½ at 3,
    which goes to 1: (0, ¼, ¾). The cross-entropy is −¼ log ½ − ¾ log ¼ = 1.75 log 2.
    """
    head = fixed_head([[5.0, 0.0, 0.0], np.log([1.0, 2.0, 1.0])])
    loss = Categorical(3, -1.0, 1.0).loss(head, ONE, jnp.array([1], jnp.int32), target([[0.5, 3.0]]), KEY)
    np.testing.assert_allclose(loss, [[1.75 * np.log(2)]], rtol=1e-5)
    weighted = target([[0.5, 3.0]], [[1.0, 0.0]])  # (0, ½, ½)
    loss = Categorical(3, -1.0, 1.0).loss(head, ONE, jnp.array([1], jnp.int32), weighted, KEY)
    np.testing.assert_allclose(loss, [[1.5 * np.log(2)]], rtol=1e-5)


@pytest.mark.parametrize(
    ("kappa", "expected"),
    # Errors (0.5, −2) of θ₁ = 0 at ¼ and (−0.5, −3) of θ₂ = 1 at ¾. κ = 1: rows (0.03125, 1.125) and (0.03125, 0.625);
    # κ = 0: rows (0.125, 1.5) and (0.125, 0.75). Summed over own levels, averaged over targets.
    [(1.0, 0.90625), (0.0, 1.25)],
)
def test_fixed_quantiles_lose_the_quantile_huber_loss(kappa, expected):
    head = fixed_head([[7.0, 7.0], [0.0, 1.0]])
    loss = FixedQuantiles(2, kappa).loss(head, ONE, jnp.array([1], jnp.int32), target([[0.5, -2.0]]), KEY)
    np.testing.assert_allclose(loss, [[expected]], rtol=1e-6)


def test_probabilities_of_a_target_weigh_its_atoms():
    head = fixed_head([[0.0, 1.0]])
    only_first = target([[0.5, -2.0]], [[1.0, 0.0]])
    loss = FixedQuantiles(2).loss(head, ONE, jnp.array([0], jnp.int32), only_first, KEY)
    np.testing.assert_allclose(loss, [[0.0625]], rtol=1e-6)


def test_the_embedding_of_a_level_counts_cosines_from_one():
    """With amplitude on the first only, θ(τ) − 10 is cos(π τ), not the constant cos(0)."""
    levels = jnp.array([[0.0, 0.25, 0.5, 1.0]], jnp.float32)
    for place, amplitudes in enumerate(np.eye(3)):
        values = implicit_head(amplitudes)(ONE, levels, None)
        assert values.shape == (1, 4, 1)
        np.testing.assert_allclose(values[0, :, 0] - 10, np.cos(np.pi * (place + 1) * levels[0]), atol=1e-5)


def test_features_and_levels_are_multiplied_before_the_streams():
    head = implicit_head([1.0])
    levels = jnp.array([[0.0, 1.0]], jnp.float32)
    np.testing.assert_allclose(head(jnp.array([[2.0], [3.0]]), levels, None)[..., 0], [[22, 18], [33, 27]], rtol=1e-5)


def test_implicit_quantiles_lose_the_loss_at_their_own_levels():
    """At the midpoints ¼ and ¾ a head without amplitude says 10 and 10. Targets 10.5 and 8: errors 0.5 and −2 for both.

    κ = 1: Huber losses 0.125 and 1.5; level ¼: ¼ · 0.125, ¾ · 1.5; level ¾: ¾ · 0.125, ¼ · 1.5. Sum over levels, mean
    over targets: (0.125 + 1.5) / 2. With the level's own slope the two differ: the amplitude makes θ(¼) = 11, θ(¾) = 9.
    """
    representation = ImplicitQuantiles(2, 2, 2, learning_levels="midpoints", num_cosines=1)
    actions = jnp.array([0], jnp.int32)
    loss = representation.loss(implicit_head([0.0]), ONE, actions, target([[10.5, 8.0]]), KEY)
    np.testing.assert_allclose(loss, [[0.8125]], rtol=1e-5)
    # θ = 11 at ¼: errors −0.5, −3, losses 0.125, 2.5, both below: ¾ each. θ = 9 at ¾: errors 1.5, −1: 1.0 · ¾, 0.5 · ¼.
    loss = representation.loss(implicit_head([np.sqrt(2)]), ONE, actions, target([[10.5, 8.0]]), KEY)
    np.testing.assert_allclose(loss, [[(0.75 * 0.125 + 0.75 * 2.5 + 0.75 * 1.0 + 0.25 * 0.5) / 2]], rtol=1e-4)


def test_levels_are_drawn_anew_for_each_row_and_each_purpose():
    representation = ImplicitQuantiles(6, 6, 6, num_cosines=1)
    head, features = implicit_head([1.0]), jnp.ones((3, 1))

    @jax.jit
    def levels(key):
        acting, goal = jax.random.split(key)
        return (
            representation.predict(head, features, "act", acting).levels,
            representation.predict(head, features, "target", goal).levels,
        )

    act, goal = levels(jax.random.key(4))
    assert act.shape == goal.shape == (3, 1, 1, 6)
    assert len(np.unique(np.concatenate([act, goal]))) == 36  # no two rows, purposes or places share a level
    again, _ = levels(jax.random.key(5))
    assert not np.isin(np.asarray(again), np.asarray(act)).any()


@pytest.mark.parametrize("config", [StreamConfig((), False, False), StreamConfig((6,), True, True)], ids=str)
def test_one_set_of_levels_for_all_rows_gives_what_equal_sets_give(config):
    """The fast way through a head without hidden layers, and the general one; values and gradients."""
    streams = ActionStreams(config, 5, 3, 1, jax.random.key(1))
    head = ImplicitHead(Linear(4, 5, KEY), streams)
    features = jax.random.normal(jax.random.key(2), (7, 5), jnp.float32)
    levels = jax.random.uniform(jax.random.key(3), (1, 6), jnp.float32)
    actions = jnp.array([0, 1, 2, 2, 1, 0, 2], jnp.int32)
    rows = jnp.broadcast_to(levels, (7, 6))
    np.testing.assert_allclose(head(features, levels, KEY), head(features, rows, KEY), rtol=1e-5, atol=1e-6)

    def spread(head, features, levels):
        values = head.select_values(features, levels, actions, KEY)
        return jnp.sum(jnp.square(values) * jnp.arange(1, 7, dtype=jnp.float32)[None, :]), values

    both = [jax.jit(jax.grad(spread, argnums=(0, 1), has_aux=True))(head, features, each) for each in (levels, rows)]
    np.testing.assert_allclose(
        both[0][1],
        jnp.take_along_axis(head(features, rows, KEY), actions[:, None, None], 2)[..., 0],
        rtol=1e-5,
        atol=1e-6,
    )
    for fast, general in zip(*(jax.tree.leaves(each) for each in both), strict=True):
        np.testing.assert_allclose(fast, general, rtol=2e-4, atol=1e-5)
    assert (streams.linear is None) == bool(config.hidden)


@pytest.mark.parametrize("sampler", ["uniform", "stratified", "cumulative"])
def test_a_batch_may_share_its_levels(sampler):
    representation = ImplicitQuantiles(6, 5, 4, sampler, sampler, share_levels=True, num_cosines=1)
    head, features = implicit_head([1.0]), jnp.array([[1.0], [2.0], [3.0]])
    purposes: list[tuple[Purpose, int]] = [("act", 4), ("target", 5)]
    for purpose, count in purposes:
        dist = representation.predict(head, features, purpose, KEY)
        assert dist.levels.shape == (1, 1, 1, count)
        assert dist.values.shape == (3, 1, 1, count)
        expected = np.array([[1.0], [2.0], [3.0]]) * (10 + np.cos(np.pi * np.asarray(dist.levels[0, 0])))
        np.testing.assert_allclose(dist.values[:, 0, 0], expected, rtol=1e-5)
        # The estimator fits one set of levels as it fits equal ones.
        rows = ReturnDist(*(None if each is None else jnp.broadcast_to(each, dist.values.shape) for each in dist))
        np.testing.assert_allclose(QEM(2).mean(*dist), QEM(2).mean(*rows), rtol=1e-4)
    goal = target([[10.0, 12.0], [20.0, 21.0], [30.0, 29.0]])
    loss = representation.loss(head, features, jnp.zeros(3, jnp.int32), goal, KEY)
    levels, _ = LEVEL_SAMPLERS[sampler](jax.random.split(KEY)[1], (1, 6))
    values = features * (10 + jnp.cos(jnp.pi * levels))
    np.testing.assert_allclose(loss[:, 0], quantile_huber(values, levels, goal.values[:, 0]), rtol=1e-3)


def test_values_stand_at_the_levels_that_come_with_them():
    """θ(τ) = 10 + cos(π τ) can be read backwards."""
    dist = ImplicitQuantiles(6, 6, 6, num_cosines=1).predict(implicit_head([1.0]), jnp.ones((3, 1)), "act", KEY)
    np.testing.assert_allclose(dist.values[:, 0, 0], 10 + np.cos(np.pi * dist.levels[:, 0, 0]), rtol=1e-5)


@pytest.mark.parametrize("sampler", ["uniform", "stratified", "midpoints"])
def test_acting_levels_come_from_the_sampler_that_was_asked_for(sampler):
    representation = ImplicitQuantiles(8, 8, 8, acting_levels=sampler, num_cosines=1)
    features = jnp.ones((200, 1))
    dist = representation.predict(implicit_head([1.0]), features, "act", KEY)
    levels = np.broadcast_to(dist.levels, (200, 1, 1, 8))[:, 0, 0]
    parts = (levels * 8).astype(int)
    in_order = (parts == np.arange(8)).all()
    assert in_order == (sampler != "uniform")
    assert (np.ptp(levels, axis=0) == 0).all() == (sampler == "midpoints")
    if sampler == "midpoints":
        np.testing.assert_allclose(levels[0], (np.arange(8) + 0.5) / 8)
    else:
        assert abs(levels.mean() - 0.5) < 0.03
    assert isinstance(representation.predict(implicit_head([1.0]), features, "target", KEY).levels, jax.Array)


def test_reports_and_acting_without_a_key_use_midpoints():
    representation = ImplicitQuantiles(4, 5, 6, num_cosines=1)
    reported = representation.predict(implicit_head([1.0]), ONE, "report", KEY).levels
    acting = representation.predict(implicit_head([1.0]), ONE, "act", None).levels
    np.testing.assert_allclose(reported, (np.arange(4) + 0.5) / 4)
    np.testing.assert_allclose(acting, (np.arange(6) + 0.5) / 6)


def test_the_distribution_of_the_chosen_action_is_picked():
    values = jnp.arange(24, dtype=jnp.float32).reshape(2, 2, 3, 2)
    actions = jnp.array([[0, 2], [1, 1]], jnp.int32)
    levels = np.array([0.25, 0.75])
    picked = select_action_distribution(ReturnDist(values, levels, values / 100), actions)
    expected = [[[0, 1], [10, 11]], [[14, 15], [20, 21]]]
    np.testing.assert_array_equal(picked.values, expected)
    assert picked.probs is not None
    np.testing.assert_allclose(picked.probs, np.array(expected) / 100, rtol=1e-6)
    assert picked.levels is levels
    shared = select_action_distribution(ReturnDist(values, values[:, :, :1]), actions)
    np.testing.assert_array_equal(shared.levels, values[:, :, 0])
    assert shared.probs is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scalar(0.0), "kappa"),
        (lambda: Categorical(1), "num_atoms must be at least 2, got 1"),
        (lambda: Categorical(5, 1.0, 1.0), "low must be below high"),
        (lambda: FixedQuantiles(0), "num_quantiles"),
        (lambda: FixedQuantiles(5, -1.0), "kappa"),
        (lambda: ImplicitQuantiles(num_cosines=0), "num_cosines"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
