"""The parts of the representations item: exact readings, truncated fixed points, worlds, and the game."""

import jax
import numpy as np
import pytest

from qemrl.estimators import DISTRIBUTIONS, EmpiricalMean, midpoints
from qemrl.paper.items.representations_exact import (
    COUNT,
    DROPPED,
    find_fixed_points,
    find_fractions,
    find_truncation_biases,
    list_processes,
    read_distribution,
)
from qemrl.paper.items.representations_game import study_game
from qemrl.paper.items.representations_learned import (
    Learned,
    _make_draw,
    learn_world,
    make_world,
    make_world_agent,
    measure,
    rms_bias,
)
from qemrl.tabular import Outcome, make_mdp, quantile_fixed_point

EXPONENTIAL = DISTRIBUTIONS["exponential"]


def steps_error(ends: np.ndarray) -> float:
    """∫ |q(τ) − q(τ̂)| dτ of the exponential distribution's quantile function and its steps."""
    levels = midpoints(200_000)
    place = np.searchsorted(ends, levels) - 1
    middles = (ends[1:] + ends[:-1]) / 2
    return float(np.abs(EXPONENTIAL.quantile(levels) - EXPONENTIAL.quantile(middles)[place]).mean())


def test_the_best_fractions_are_better_than_even_ones_and_than_their_neighbors():
    ends = find_fractions(EXPONENTIAL)
    best = steps_error(ends)
    assert best < 0.8 * steps_error(np.arange(COUNT + 1) / COUNT)
    for place in (1, 16, 31):
        for shift in (-0.3, 0.3):
            moved = ends.copy()
            moved[place] += shift * (ends[place + 1] - ends[place])
            assert steps_error(moved) > best


def test_readings_of_a_distribution_have_its_own_mean_where_they_keep_it():
    readings = read_distribution(EXPONENTIAL, np.random.default_rng(0), 4_000)
    assert readings["expectiles"].own[0] == pytest.approx(1, abs=1e-4)
    assert readings["fixed quantiles"].own[0] == pytest.approx(1 - 0.0108, abs=1e-4)  # algorithms.md, section 9.1
    for name in ("random levels", "particles"):
        assert readings[name].own.mean() == pytest.approx(1, abs=4 / np.sqrt(4_000 * COUNT))
    for reading in readings.values():
        assert (np.diff(reading.levels.mean(0)) != 0).all()
        assert reading.values.shape[-1] == reading.levels.shape[-1]


def test_dropping_the_largest_quantiles_leaves_them_out_of_the_targets():
    """x0 goes to x1, where the reward is 0, 1, 2 or 3: four quantiles are exact there, and x0 sees the first three."""
    rewards = [[Outcome(0.25, 1, float(reward), True) for reward in range(4)]]
    mdp = make_mdp([[[Outcome(1.0, 1, 0.0, False)]], rewards], 0.5)
    policy = np.zeros(2, np.int64)
    whole = quantile_fixed_point(mdp, policy, 4)
    np.testing.assert_allclose(whole, [[0, 0.5, 1, 1.5], [0, 1, 2, 3]])
    # Levels 1/8, 3/8, 5/8 and 7/8 of three equally likely targets 0, ½ and 1.
    np.testing.assert_allclose(quantile_fixed_point(mdp, policy, 4, num_dropped=1), [[0, 0.5, 0.5, 1], [0, 1, 2, 3]])
    for wrong in (-1, 4):
        with pytest.raises(ValueError, match=f"num_dropped must be at least 0 and below num_quantiles=4, got {wrong}"):
            quantile_fixed_point(mdp, policy, 4, num_dropped=wrong)


def test_processes_know_their_returns():
    lake, chain, *others = list_processes(2, 0)
    assert (lake.mean, lake.low, lake.high) == pytest.approx((0.785533, 0.0, 0.999**5), abs=1e-6)
    assert chain.mean == pytest.approx(0.99**5 * -0.5, abs=1e-6)
    assert all(each.low < each.mean < each.high and each.variance > 0 for each in others)
    assert list_processes(2, 1)[2].mean != others[0].mean


def test_categories_keep_the_mean_and_truncation_lowers_it():
    process = list_processes(2, 0)[1]
    points = {(each.representation, each.setting): each for each in find_fixed_points(process)}
    assert abs(points["categories", "support × 2"].bias) < 1e-4  # the reward is 256 numbers
    widths = [points["categories", f"support × {width}"].variance for width in (1, 2, 4)]
    assert 1 < widths[0] < widths[1] < widths[2]
    biases = find_truncation_biases(process)
    assert sorted(biases, key=lambda number: -biases[number]) == list(DROPPED)


def test_transitions_are_drawn_as_the_process_has_them():
    world = make_world("FrozenLake")
    batches = jax.vmap(_make_draw(world))(jax.random.split(jax.random.key(0), 500))
    states, following = (
        np.asarray(each).argmax(-1).ravel() for each in (batches.observation, batches.next_observation)
    )
    assert set(states) == set(world.states)
    for state in world.states[:3]:
        seen = following[states == state]
        for place in set(world.step.next_states[state][world.step.probs[state] > 0]):
            chance = world.step.probs[state][world.step.next_states[state] == place].sum()
            assert (seen == place).mean() == pytest.approx(chance, abs=4 * np.sqrt(0.25 / len(seen)))
    np.testing.assert_allclose(world.means[0], 3 * 0.785533, atol=1e-5)
    assert set(np.unique(batches.reward)) == {0.0, 3.0}


def test_learning_a_world_finds_its_returns():
    (record,) = learn_world("qr-dqn", "chain", 3, 3_000, 1, 0)
    found = measure("chain", record)
    assert found["error of Q (rms) / std"].value < 0.03
    assert record.values is not None
    assert found["bias of quantiles (rms) / std"].value < 0.1
    agent = make_world_agent("qr-dqn", "chain", 3_000)
    assert agent.config.estimator == EmpiricalMean()
    np.testing.assert_allclose(record.q, record.values.mean(-1), rtol=1e-5)


def test_a_bias_is_what_seeds_have_in_common():
    noise = np.random.default_rng(0).normal(size=(50, 400))
    assert rms_bias(noise) < 0.05
    assert rms_bias(noise + 1) == pytest.approx(1, abs=0.05)
    np.testing.assert_allclose(rms_bias(np.full((3, 2), -2.0)), 2)


def test_learned_records_of_what_holds_no_quantiles_have_none():
    (record,) = learn_world("hl-gauss", "chain", 3, 40, 1, 0)
    assert isinstance(record, Learned)
    assert (record.qem, record.values, record.levels, record.crossing) == (None, None, None, None)
    assert set(measure("chain", record)) == {"error of Q (rms) / std", "bias of Q / std"}


def test_an_agent_is_compared_with_its_own_game():
    shares: list[float] = []
    (played,) = study_game("nc-qr-dqn", 1_200, 1, 6, 4, 0, shares.append)
    assert played.crossing == 0
    assert np.isfinite(played).all()
    assert played.q_bias != 0
    assert shares[-1] == pytest.approx(1)
