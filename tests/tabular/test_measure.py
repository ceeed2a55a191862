"""Errors against the truth and their parts, by hand and on real runs."""

import numpy as np
import pytest

from qemrl.tabular import (
    Categories,
    DiscreteDistribution,
    Expectiles,
    History,
    Learning,
    Quantiles,
    Scalar,
    as_distribution,
    decompose,
    frozen_lake,
    learn,
    make_mdp,
    policy_values,
    random_mdp,
    solve,
    start_distances,
    start_error,
    temporal_std,
    toy_uniform,
)


def history_of(q: np.ndarray, counts: np.ndarray, rows: np.ndarray | None = None) -> History:
    """A history with the given estimates (seeds, records, states, actions)."""
    seeds, records, states, actions = q.shape
    rows = np.zeros((seeds, records, actions, 1)) if rows is None else rows
    table = np.zeros((seeds, states, actions, rows.shape[-1]))
    return History(np.arange(1, records + 1), q, rows, counts, np.zeros((seeds, records), dtype=int), table)


@pytest.mark.parametrize("control", [True, False])
def test_the_parts_add_up_to_the_error_and_are_missing_where_nothing_was_seen(control):
    lake = frozen_lake()
    solution = solve(lake)
    policy = None if control else solution.policy
    history = learn(lake, Learning(Quantiles(4), 400, record_every=100), range(2), policy)
    parts = decompose(lake, history, policy)
    seen = history.counts.sum(-1) > 0
    assert seen.any()
    assert not seen.all()
    truth = solution.q if control else policy_values(lake, solution.policy)
    whole = parts.target + parts.sampling + parts.parametrization
    np.testing.assert_allclose(whole[seen], (history.q - truth)[seen], atol=1e-6)
    for part in (parts.target, parts.sampling):
        np.testing.assert_array_equal(np.isnan(part), ~seen)
    assert np.isfinite(parts.parametrization).all()


@pytest.mark.parametrize("control", [True, False])
def test_nothing_is_due_to_sampling_when_outcomes_are_seen_as_often_as_they_should_be(control):
    rng = np.random.default_rng(0)
    outcomes = [
        [[(0.25, int(rng.integers(3)), rng.normal(), False), (0.75, int(rng.integers(3)), rng.normal(), True)]] * 2
    ] * 3
    mdp = make_mdp(outcomes, 0.9)
    q = rng.normal(size=(2, 1, 3, 2))
    exact = history_of(q, np.tile(mdp.probs * 40, (2, 1, 1, 1, 1)).astype(int))
    policy = None if control else rng.dirichlet(np.ones(2), 3)
    np.testing.assert_allclose(decompose(mdp, exact, policy).sampling, 0, atol=1e-12)
    uneven = exact._replace(counts=exact.counts + np.array([1, 0]))
    assert np.abs(decompose(mdp, uneven, policy).sampling).max() > 1e-3


def test_the_true_values_have_neither_target_nor_parametrization_error():
    mdp = random_mdp(4, 2, 3, np.random.default_rng(1))
    counts = np.ones((1, 1, *mdp.probs.shape), dtype=int)
    parts = decompose(mdp, history_of(solve(mdp).q[None, None], counts))
    np.testing.assert_allclose(parts.parametrization, 0, atol=1e-9)
    np.testing.assert_allclose(parts.target, -parts.sampling, atol=1e-9)


def test_the_parts_of_one_state_are_those_by_hand():
    # Reward 1 and an end, or 0 and on, with equal chances and discount 1/2: Q = 1/2 + Q/4 = 2/3.
    # The end was seen in three cases of four. With Q̂ = 1: sampled 3/4 + 1/4 · 1/2 = 7/8, true operator 1/2 + 1/4 = 3/4.
    mdp = make_mdp([[[(0.5, 0, 1.0, True), (0.5, 0, 0.0, False)]]], 0.5)
    parts = decompose(mdp, history_of(np.ones((1, 1, 1, 1)), np.array([3, 1]).reshape(1, 1, 1, 1, 2)))
    np.testing.assert_allclose([part.item() for part in parts], [1 / 8, 1 / 8, 3 / 4 - 2 / 3])


def test_rewards_from_distributions_count_with_their_means():
    mdp = toy_uniform(2, 1.0)
    q = np.zeros((1, 1, 3, 1))
    parts = decompose(mdp, history_of(q, np.ones((1, 1, 3, 1, 2), dtype=int)), np.zeros(3, dtype=np.int64))
    # at x2 the one true outcome, of mean 1, was seen once, and what pads the table, of mean 0, once
    np.testing.assert_allclose(parts.target[0, 0, :, 0], [0, -0.25, -0.5])
    np.testing.assert_allclose(parts.parametrization[0, 0, :, 0], [-0.75, 0, 0])


def test_errors_at_the_start_are_those_of_the_best_action():
    mdp = make_mdp([[[(1.0, 0, 0.0, True)]] * 2] * 2, 0.9, initial=1)
    q = np.array([[[[9.0, 9.0], [1.0, 2.0]], [[9.0, 9.0], [4.0, 3.0]]]])
    counts = np.ones((1, 2, 2, 2, 1), dtype=int)
    np.testing.assert_allclose(start_error(mdp, history_of(q, counts), 2.5), [[-0.5, 1.5]])
    # the best action is the second in the first record, the first in the second one
    rows = np.array([[[[7.0, 7.0], [1.0, 3.0]], [[4.0, 4.0], [7.0, 7.0]]]])
    truth = DiscreteDistribution.from_atoms(np.array([1.0, 2.0]))
    found = start_distances(mdp, history_of(q, counts, rows), Quantiles(2), truth)
    np.testing.assert_allclose(found, [[0.5, 2.5]])
    # probabilities 1/4 and 3/4 on 1 and 2, of which a negative one counts as zero
    rows = np.array([[[[1.0, 0.0], [0.25, 0.75]], [[-0.5, 1.0], [1.0, 0.0]]]])
    found = start_distances(mdp, history_of(q, counts, rows), Categories(1.0, 2.0, 2), truth)
    np.testing.assert_allclose(found, [[0.25, 0.5]])


@pytest.mark.parametrize("representation", [Scalar(), Expectiles(5)])
def test_rows_that_stand_for_no_distribution_are_refused(representation):
    with pytest.raises(ValueError, match=f"a row of {type(representation).__name__} stands for no single distribution"):
        as_distribution(representation, np.zeros(len(representation.mean_weights())))


def test_what_still_moves_is_measured_over_the_last_records():
    q = np.array([100.0, 1.0, 3.0, 5.0]).reshape(1, 4, 1, 1)
    history = history_of(q, np.ones((1, 4, 1, 1, 1), dtype=int))
    assert temporal_std(history, 2).item() == 1
    assert temporal_std(history, 3).item() == pytest.approx(np.sqrt(8 / 3))
    for records in (1, 5):
        with pytest.raises(ValueError, match=f"between 2 and 4, got {records}"):
            temporal_std(history, records)
