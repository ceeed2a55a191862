"""The bench of growth: exponents are those of powers, and laps hold the steps and updates that they say."""

import json
import math

import numpy as np
import pytest

from benchmarks.performance import growth_sheets
from benchmarks.scaling import (
    QUANTILE_AGENTS,
    Point,
    Sizes,
    fitted_exponent,
    make_growth,
    make_laps,
    run,
    with_quantiles,
)
from benchmarks.timing import Timing
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.training.config import configure


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found(power):
    numbers = [8, 16, 64, 512]
    assert fitted_exponent(numbers, [0.003 * number**power for number in numbers]) == pytest.approx(power, abs=1e-9)


def test_the_exponent_is_that_of_the_nearest_line_of_logarithms():
    numbers, seconds = [1, 3, 5, 9], [0.2, 0.1, 0.7, 0.9]
    x, y = np.log(numbers), np.log(seconds)
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    assert fitted_exponent(numbers, seconds) == pytest.approx(slope)


@pytest.mark.parametrize("numbers", [[], [4], [4, 4]])
def test_one_number_does_not_grow(numbers):
    with pytest.raises(ValueError, match="two different numbers or more, got"):
        fitted_exponent(numbers, [1.0] * len(numbers))


def test_growth_is_of_medians_and_its_ratio_of_twins():
    # In the third round the machine is ten times slower, for both.
    times = {2: Timing([1.0, 2.0, 20.0]), 8: Timing([4.0, 6.0, 60.0])}
    growth = make_growth("seeds", "qr-dqn", times, {2: 8, 8: 32})
    assert growth.points == [Point(2, 2000.0, 4.0), Point(8, 6000.0, 32 / 6)]
    assert growth.exponent == pytest.approx(math.log(3, 4))
    assert growth.ratio == 3.0  # of 4, 3 and 3


def test_agents_have_so_many_quantiles_of_each_kind_and_are_else_as_their_presets():
    for name, (preset, shared) in QUANTILE_AGENTS.items():
        config, usual = with_quantiles(name, "minatar/breakout", 7), configure(preset, "minatar/breakout", 1).agent
        assert config.estimator == usual.estimator
        assert (config.network, config.batch_size, config.update_every) == (usual.network, 32, 4)
        match config.representation:
            case FixedQuantiles(num_quantiles=count):
                assert (preset in ("qr-dqn", "qem-dqn"), count) == (True, 7)
            case ImplicitQuantiles() as levels:
                assert (levels.num_levels, levels.num_target_levels, levels.num_acting_levels) == (7, 7, 7)
                assert levels.share_levels == shared
    assert {shared for preset, shared in QUANTILE_AGENTS.values() if preset == "iqn"} == {True, False}


def test_a_lap_is_steps_of_each_environment_and_an_update_for_each():
    advance = make_laps("probe/1", 1, 8, laps=3)
    (first,), (second,) = advance(), advance()
    assert second["step"] - first["step"] == 3 * 8
    assert first["train/updates"] == second["train/updates"] == 3 * 8
    assert np.isfinite(first["train/loss"])


def test_a_report_has_a_line_for_each_thing_and_agent_and_is_plain_data():
    told = []
    sizes = Sizes("probe/1", seeds=(), environments=(4, 8), quantiles=(4, 8), agents=("qem-dqn",), laps=8)
    report = run(0.01, told.append, sizes)
    assert told[0] == "compiling qem-dqn with 4 quantiles"
    assert "compiling qr-dqn on probe/1 with seeds x environments = 1 x 8" in told
    assert [(growth.over, growth.agent) for growth in report.growths] == [
        ("environments", "qr-dqn"),
        ("quantiles", "qem-dqn"),
    ]
    for growth, numbers, steps in zip(report.growths, [(4, 8), (4, 8)], [(4, 8), (1, 1)], strict=True):
        small, large = growth.points
        assert (small.number, large.number) == numbers
        for point, count in zip(growth.points, steps, strict=True):
            assert point.steps_per_second == pytest.approx(1e3 * count / point.milliseconds)
        assert growth.exponent == pytest.approx(math.log2(large.milliseconds / small.milliseconds))
        assert growth.ratio > 0
    environments, quantiles = growth_sheets(json.loads(json.dumps(report.as_json())))
    assert environments.title == "probe/1 over environments"
    assert environments.columns == ("environments", ">4", ">8", ">exponent", ">ratio")
    assert [row[0] for row in quantiles.rows] == ["qem-dqn: ms", "qem-dqn: steps/s"]
    assert "cpu" in report.machine


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_no_time_at_all_is_refused(seconds):
    with pytest.raises(ValueError, match="timing takes seconds"):
        run(seconds, lambda _: None)
