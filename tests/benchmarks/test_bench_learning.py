"""The learning bench: ratios have honest intervals, curves become verdicts by its rules, the page is what they say."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import adapters, learning, peer_learning, qemrl_learning
from benchmarks.__main__ import main
from benchmarks.learning import CONTESTS, Run, Side, judge, ratio_of_means
from benchmarks.peers import PeerError

ROOT = Path(__file__).parents[2]
STEPS = np.array([10, 20, 30, 40])


def make_side(returns: list[list[float]], seconds: float = 1.0) -> Side:
    values = np.array(returns)
    return Side(STEPS, values, seconds * np.tile(np.arange(1.0, 5.0), (len(values), 1)))


def write_curve(folder: Path, run: Run, level: float, seconds: float = 1.0) -> None:
    path = run.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    returns = [[level * step / 40, level * step / 40 + run.seed] for step in STEPS]
    times = [seconds * step for step in STEPS]
    curve = {"steps": STEPS.tolist(), "returns": returns, "seconds": times, "cpu_seconds": times}
    path.write_text(json.dumps(curve), encoding="utf-8")


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(2_000):
        interval, _ = ratio_of_means(generator.normal(12, 3, 5), generator.normal(10, 1, 5))
        hits += not interval.excludes(1.2)
    assert 0.93 < hits / 2_000 < 0.97


def test_a_ratio_is_found_by_the_power_that_is_said():
    """Of two sides that differ by the detectable ratio, 80% have an interval below 1."""
    generator = np.random.default_rng(1)
    _, detectable = ratio_of_means(*(10 + 2 * _unit_samples(5) for _ in range(2)))
    shown = sum(
        ratio_of_means(generator.normal(10 * detectable, 2 * detectable, 5), generator.normal(10, 2, 5))[0].high < 1
        for _ in range(2_000)
    )
    assert 0.72 < shown / 2_000 < 0.88


def _unit_samples(count: int) -> np.ndarray:
    samples = np.linspace(-1, 1, count)
    return samples / samples.std(ddof=1)


def test_sides_without_any_spread_have_an_exact_ratio():
    interval, detectable = ratio_of_means(np.full(5, 500.0), np.full(5, 250.0))
    assert (tuple(interval), detectable) == ((2.0, 2.0, 2.0), 1.0)
    with pytest.raises(ValueError, match="positive means, got -1 and 2"):
        ratio_of_means(np.full(5, -1.0), np.full(5, 2.0))


def test_the_return_of_a_seed_is_that_of_the_second_half():
    assert make_side([[100.0, 100.0, 1.0, 3.0]]).scores == 2.0


def test_the_time_to_a_threshold_is_that_of_the_first_evaluation_there():
    side = make_side([[0.0, 5.0, 0.0, 6.0], [0.0, 0.0, 0.0, 5.0], [4.9, 4.9, 4.9, 4.9]], seconds=2.0)
    np.testing.assert_array_equal(side.times_to(5.0), [4.0, 8.0, np.inf])


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ([[99.0], [100.0], [101.0]], "as good"),
        ([[89.0], [90.0], [91.0]], "as good, and below 1"),
        ([[49.0], [50.0], [51.0]], "worse"),
        ([[20.0], [100.0], [160.0]], "undecided; a ratio of 0."),
    ],
)
def test_verdicts_follow_the_rules(ours, words):
    peer = make_side([[value] * 4 for value in (99.0, 100.0, 101.0)])
    verdict = judge("sac-hopper", make_side([row * 4 for row in ours]), peer)
    assert verdict.words.startswith(words)
    assert verdict.reached == (0, 0)
    assert verdict.speed is None


def test_speed_is_compared_where_all_seeds_reach_the_threshold():
    returns = [[0.0, 500.0, 500.0, 500.0]] * 3
    verdict = judge("qr-dqn-cartpole", make_side(returns, 1.0), make_side(returns, 3.0))
    assert verdict.reached == (3, 3)
    assert verdict.speed is not None
    assert verdict.speed.value == pytest.approx(3.0)


def test_both_sides_know_all_contests():
    assert set(qemrl_learning.TASKS) == set(peer_learning.TASKS) == set(CONTESTS)
    for contest in CONTESTS.values():
        assert contest.steps % contest.every == 0
        assert contest.peer in learning.PEERS


def test_our_side_learns_and_does_not_count_evaluations():
    task = qemrl_learning.Task("qr-dqn", "CartPole-v1", {"network.widths": (8,), "learning_starts": 100})
    curve = qemrl_learning.learn(task, 0, 400, 200, 3)
    assert curve["steps"] == [200, 400]
    assert [len(returns) for returns in curve["returns"]] == [3, 3]
    assert 0 < curve["cpu_seconds"][0] < curve["cpu_seconds"][1]


def test_a_clock_stands_still_during_evaluations():
    clock = peer_learning.Clock()
    clock.stop()
    sum(range(10**6))
    clock.go_on(1, [1.0])
    clock.stop()
    clock.go_on(2, [2.0])
    first, second = clock.curve["cpu_seconds"]
    start = peer_learning.now()[1]
    sum(range(10**6))
    assert second - first < (peer_learning.now()[1] - start) / 2


def test_curves_that_are_there_become_a_figure_and_a_page_without_a_run(tmp_path, capsys):
    for seed in range(3):
        write_curve(tmp_path, Run("sac-hopper", "qemrl", seed), 500.0)
        write_curve(tmp_path, Run("sac-hopper", "peer", seed), 400.0, seconds=2.0)
    write_curve(tmp_path, Run("qr-dqn-cartpole", "qemrl", 0), 500.0)  # without a peer: it is left out
    page = tmp_path / "docs" / "learning.md"
    main(["learning", "--contests", "none", "--out", str(tmp_path), "--page", str(page)])
    assert "wrote" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "| SAC, Hopper-v5 | SBX | 3, 3 | 438 | 350.5 | 1.25 [" in text
    assert "QR-DQN" not in text
    assert "(../figure.png)" in text
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_an_unknown_contest_is_an_error_that_names_them(tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        main(["learning", "--contests", "sac-hoper", "--out", str(tmp_path)])
    assert error.value.code == 2
    assert "there is no contest 'sac-hoper'; choose from qr-dqn-cartpole" in capsys.readouterr().err


def test_a_run_that_fails_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # our own package is not there
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PeerError, match="failed with"):
        learning.write_run(Run("sac-hopper", "qemrl", 0), tmp_path, tmp_path, 0)
    assert not list(tmp_path.rglob("*.json"))


def test_the_page_in_the_repository_is_what_its_curves_make():
    verdicts = learning.read_verdicts(ROOT / "results" / "learning")
    page = learning.make_page(verdicts, "../results/learning/figure.png")
    assert (ROOT / "docs" / "learning.md").read_text(encoding="utf-8") == page


def test_the_page_of_adapters_says_what_estimators_do_to_returns_and_to_the_error_of_q(tmp_path):
    for arm, level, error in (("tianshou-plain", 100.0, 0.2), ("tianshou-qem", 103.0, 0.01), ("sb3-mean", 50.0, None)):
        for seed in range(3):
            returns = [[0.0, 0.0], [level + seed, level - seed]]
            errors = {f"{kind}_{name}": each for kind in ("error", "gap_error") for name, each in _errors(error)}
            record = {"steps": [10, 20], "returns": returns, **errors}
            adapters.Run(arm, seed).path(tmp_path).write_text(json.dumps(record), encoding="utf-8")
    rows = [line.split(" | ") for line in adapters.make_page(tmp_path).splitlines() if line.startswith("| ")]
    by_arm = {row[1]: row for row in rows}
    assert by_arm["QEM, uniform levels"][3] == "103 [103, 103]"
    assert by_arm["QEM, uniform levels"][4] == "1.03 [1.03, 1.03]"
    assert by_arm["QEM, uniform levels"][5:7] == ["0.01 [0.01, 0.01]", "95.0% [95.0%, 95.0%]"]
    assert by_arm["the parent: plain mean"][5] == ""
    assert "QEM" not in by_arm  # an arm without runs


def _errors(own: float | None) -> list[tuple[str, float]]:
    return [] if own is None else [("own", own), ("plain", 0.2)]


def test_the_page_of_adapters_in_the_repository_is_what_its_runs_make():
    page = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    assert page == adapters.make_page(ROOT / "results" / "adapters"), "run: python -m benchmarks adapters"
