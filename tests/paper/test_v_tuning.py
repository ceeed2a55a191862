"""The study of V: what tells its arms apart, what a score is, and the test of whether v matters."""

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest

from qemrl.agents.value import ValueConfig
from qemrl.estimators import QEM, EmpiricalMean, TailVariance
from qemrl.exploration import EpsilonGreedy
from qemrl.paper.agent_runs import configure_item
from qemrl.paper.items import v_tuning
from qemrl.paper.items.v_tuning import (
    ARMS,
    PLAIN,
    TASKS,
    VALUES,
    Curves,
    Task,
    breakout,
    cartpole,
    distance,
    make_estimator,
    p_value_of_range,
    pendulum,
)


def ramp(low: float) -> Curves:
    """Two seeds, ten evaluations: one that climbs from `low` by one, and one that stays there."""
    climbing = low + np.arange(10.0)
    return Curves(np.arange(100, 1100, 100), np.stack([climbing, np.full(10, low)], axis=1))


@pytest.mark.parametrize("task", TASKS["paper"], ids=lambda task: task.env)
def test_arms_differ_in_the_estimator_alone(task: Task):
    runs = {arm: task.run(arm, 3) for arm in task.arms}
    assert task.arms == ARMS
    for arm, config in runs.items():
        assert config.agent.estimator == (EmpiricalMean() if arm == PLAIN else QEM(4, TailVariance(float(arm), 0.1)))
        agent = replace(config.agent, estimator=runs[PLAIN].agent.estimator)
        assert replace(config, agent=agent) == runs[PLAIN]
    published = configure_item(task.preset, task.env, task.steps).agent.estimator
    assert runs[task.published].agent.estimator == published


def test_agents_are_those_of_the_presets_but_for_epsilon_and_the_cart_poles_layers():
    assert pendulum(10_000, 2).agent("1.2") == configure_item("qem-dsac-mlp", "jax/pendulum", 10_000).agent
    for task, share in ((breakout(100_000, 2), 0.25), (cartpole(100_000, 2), 0.2)):
        preset, agent = configure_item(task.preset, task.env, task.steps).agent, task.agent("1.5")
        assert isinstance(agent, ValueConfig)
        assert isinstance(preset, ValueConfig)
        assert isinstance(agent.exploration, EpsilonGreedy)
        assert agent.exploration.over_steps == share * task.steps
        network = preset.network if task.widths is None else replace(preset.network, widths=task.widths)
        assert agent == replace(preset, exploration=agent.exploration, network=network)


def test_all_arms_of_a_scale_have_the_same_seeds_and_25_evaluations():
    for tasks in TASKS.values():
        for task in tasks:
            runs = [task.run(arm, 7_000) for arm in task.arms]
            assert {config.seeds for config in runs} == {tuple(range(7_000, 7_000 + task.num_seeds))}
            assert {config.whole_steps / config.log_every for config in runs} == {25}
            assert task.published in task.arms
            assert all(config.is_evaluated(config.next_stop(0)) for config in runs)


def test_the_score_is_of_the_last_fifth_and_the_area_of_the_whole_run():
    curves = ramp(5.0)
    np.testing.assert_allclose(curves.score, [5 + 8.5, 5])
    np.testing.assert_allclose(curves.area, [5 + 4.5, 5])
    uneven = Curves(np.array([100, 400]), np.array([[1.0], [3.0]]))
    np.testing.assert_allclose(uneven.score, [3.0])
    np.testing.assert_allclose(uneven.area, [(1 + 3 * 3) / 4])


def test_the_p_value_is_the_share_of_all_shuffles_with_as_large_a_range():
    scores = np.random.default_rng(0).normal(size=(3, 3)) + np.array([[0.0], [0.5], [1.0]])
    seen = np.ptp(scores.mean(1))
    columns = [list(permutations(scores[:, seed])) for seed in range(3)]
    ranges = [np.ptp(np.mean(shuffled, axis=0)) for shuffled in product(*columns)]
    exact = np.mean(np.array(ranges) >= seen - 1e-12)
    assert 0.01 < exact < 0.9
    assert p_value_of_range(scores, 1, 40_000) == pytest.approx(exact, abs=4 * np.sqrt(exact / 40_000))


def test_p_values_of_known_cases():
    apart = np.arange(10.0)[None] + np.array([[0.0], [100.0]])
    assert p_value_of_range(apart, 0, 50_000) == pytest.approx(2 / 2**10, abs=6e-4)
    assert p_value_of_range(np.full((5, 4), 3.3), 0, 100) == 1
    assert p_value_of_range(1e6 + apart, 0, 500) == p_value_of_range(apart, 0, 500)


def test_p_values_are_right_where_nothing_matters():
    """Whatever seeds have in common: below 0.05 in 5% of cases."""
    rng = np.random.default_rng(2)
    cases = 10 * rng.normal(size=(400, 1, 6)) + rng.standard_exponential(size=(400, 5, 6))
    chances = np.array([p_value_of_range(case, number, 199) for number, case in enumerate(cases)])
    assert np.mean(chances <= 0.05) == pytest.approx(0.05, abs=0.033)
    assert chances.mean() == pytest.approx(0.5, abs=0.06)


def test_weights_are_the_farther_from_equal_the_larger_v():
    far = [distance(arm, 51) for arm in VALUES]
    assert far == sorted(far)
    assert distance(PLAIN, 51) == pytest.approx(0, abs=1e-12)
    assert distance("1", 32) == pytest.approx(0.095, abs=1e-3)
    assert distance("1", 200) == pytest.approx(0.023, abs=1e-3)
    assert make_estimator(PLAIN) == EmpiricalMean()


def test_claims_are_paired_and_point_at_the_better_arm(monkeypatch: pytest.MonkeyPatch):
    """Scores that rise with v by less than seeds differ: seed by seed, they do so all the same."""
    task = cartpole(1_000, 4)
    spread = np.array([0.0, 50.0, 100.0, 200.0])

    def learn(task, arm, seed, tick):
        del task, seed
        tick(1.0)
        level = (0.5 if arm == PLAIN else float(arm)) + spread + 0.01 * np.sin(np.arange(4) * (3 + len(arm)))
        return Curves(np.arange(40, 1040, 40), np.broadcast_to(level, (25, 4)).copy())

    monkeypatch.setattr(v_tuning, "learn", learn)
    monkeypatch.setitem(v_tuning.TASKS, "smoke", (task,))
    result = v_tuning.run("smoke", 0, lambda _: None)
    against_one, against_mean, matters = result.claims
    assert [claim.verdict for claim in result.claims] == ["holds"] * 3
    assert [claim.where for claim in result.claims] == ["Appendix E.2", "Appendix E.2", "ours"]
    assert against_one.measured.value == pytest.approx(0.5, abs=0.02)
    assert against_mean.measured.value == pytest.approx(1.0, abs=0.02)
    assert matters.measured.value < 0.001
    assert len(result.rows) == 6 * 4 * (25 + 2)
