"""Reports: the numbers against hand-made cases, and what the page, the figures and the command make of them."""

import base64
import contextlib
import hashlib
import json
import math
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from written_runs import HOSTILE, write_run

from qemrl import api
from qemrl.cli.console import UsageError
from qemrl.cli.studies import report
from qemrl.experiments.episodes import play_episode
from qemrl.experiments.runs import read_runs
from qemrl.plotting.style import format_steps, shorten_labels
from qemrl.report import charts, figures
from qemrl.report.content import Content, find_differing_settings, find_nearest, flatten_config, gather
from qemrl.report.markup import NOTHING, Html, dump_script, element, format_duration, format_number, table
from qemrl.report.page import make_page
from qemrl.report.predictions import (
    EPISODE_SEED,
    ActionPrediction,
    AgentPrediction,
    _read_last_evaluation,
    find_saved_agents,
    predict_returns,
)
from qemrl.report.results import compute_results
from qemrl.training.run_directory import RunDirectory

T_OF_THREE = 4.30265272991
"""Student's quantile at 0.975 with 2 degrees of freedom, from tables."""


def silent(_: str) -> None:
    """Nobody is told."""


def read_content(folder: Path) -> Content:
    return gather(folder, agents=False, seed=0, tick=silent)


@pytest.fixture(scope="module")
def content(campaign) -> Content:
    return read_content(campaign)


def three(folder: Path) -> Path:
    """Two algorithms on one task with three seeds: qr-dqn ends at 1, 2, 3 and iqn at 3, 3, 6."""
    for arm, ends in (("qr-dqn", (1, 2, 3)), ("iqn", (3, 3, 6))):
        for seed, end in enumerate(ends):
            write_run(folder / f"{arm}-{seed}", arm, "probe/1", seed, [0, end, end, end])
    return folder


# Numbers


def test_final_scores_and_paired_differences_have_students_intervals(tmp_path):
    found = compute_results(read_runs(three(tmp_path)).cells(), seed=0)
    reach = T_OF_THREE * 1 / math.sqrt(3)
    assert found.final["qr-dqn", "probe/1"] == pytest.approx((2, 2 - reach, 2 + reach))
    # The differences of pairs are 2, 1 and 3.
    assert found.differences["iqn", "qr-dqn", "probe/1"].interval == pytest.approx((2, 2 - reach, 2 + reach))
    assert found.differences["qr-dqn", "iqn", "probe/1"].interval == pytest.approx((-2, -2 - reach, -2 + reach))
    assert {difference.pairs for difference in found.differences.values()} == {3}
    # By the trapezoidal rule over 3000 steps: (0 / 2 + end + end + end / 2) / 3.
    assert found.average["qr-dqn", "probe/1"].value == pytest.approx(2 * 2.5 / 3)


def test_the_nearest_algorithm_is_the_first_of_those_with_the_fewest_other_settings():
    settings = {
        "estimator": {"a": "mean", "b": "qem", "c": "mean", "d": "qem"},
        "levels": {"a": "fixed", "b": "fixed", "c": "random", "d": "random"},
        "order": {"a": NOTHING, "b": "4", "c": NOTHING, "d": "4"},
    }
    assert find_nearest(("a", "b", "c", "d"), settings) == {"b": "a", "c": "a", "d": "b"}
    assert find_nearest(("a", "b"), {}) == {"b": "a"}
    assert find_nearest((), settings) == {}


def test_gains_are_the_differences_of_the_pairs_that_were_compared(tmp_path):
    found = compute_results(read_runs(three(tmp_path)).cells(), seed=0)
    assert found.aggregates is not None
    pairs = {"iqn": "qr-dqn", "dqn": "qr-dqn"}
    assert found.gains(pairs, "probe/1") == {"iqn": found.differences["iqn", "qr-dqn", "probe/1"]}
    assert found.gains(pairs, None) == {"iqn": found.aggregates.differences["iqn", "qr-dqn"]}
    assert found.gains(pairs, "probe/2") == {}


def test_of_many_tasks_only_what_holds_over_all_is_drawn(tmp_path):
    tasks = [f"probe/{number}" for number in range(1, 6)] + ["jax/catch", "jax/cartpole"]
    for env in tasks:
        for arm in ("qr-dqn", "qem-dqn"):
            write_run(tmp_path / arm / env, arm, env, 0, [0, 1, 2, 3])
    assert list(figures.collect_gains(read_content(tmp_path))) == ["all tasks\nnormalized score"]
    shutil.rmtree(tmp_path / "qem-dqn" / "jax" / "catch")
    shutil.rmtree(tmp_path / "qr-dqn" / "jax" / "catch")
    assert len(figures.collect_gains(read_content(tmp_path))) == 7


def test_aggregates_are_of_scores_between_the_lowest_and_the_best_mean(tmp_path):
    found = compute_results(read_runs(three(tmp_path)).cells(), seed=0)
    assert found.aggregates is not None
    assert found.aggregates.references == {"probe/1": (0.0, 4.0)}
    mean, iqm = found.aggregates.statistics["mean"], found.aggregates.statistics["IQM"]
    assert mean["qr-dqn"].value == pytest.approx(0.5)
    assert mean["iqn"].value == pytest.approx(1.0)
    assert iqm["iqn"].value == pytest.approx(1.0)  # of three runs none is left out
    assert 0.75 <= mean["iqn"].low < 1.0
    profile = found.aggregates.profiles["qr-dqn"]
    above = [np.mean(np.array([0.25, 0.5, 0.75]) > threshold) for threshold in found.aggregates.thresholds]
    np.testing.assert_allclose(profile.share, above)
    assert found.aggregates.differences["iqn", "qr-dqn"].interval.value == pytest.approx(0.5)
    assert found.aggregates.runs == {"qr-dqn": 3, "iqn": 3}


def test_the_probability_of_improvement_counts_pairs_and_is_seen_from_both_sides(tmp_path):
    found = compute_results(read_runs(three(tmp_path)).cells(), seed=0).improvement
    # Of nine pairs of (3, 3, 6) and (1, 2, 3), seven are won and two are ties.
    better, worse = found["iqn", "qr-dqn"], found["qr-dqn", "iqn"]
    assert better.value == pytest.approx(8 / 9)
    assert worse.value == pytest.approx(1 / 9)
    assert worse.low == pytest.approx(1 - better.high)


def test_one_seed_gives_values_without_intervals(tmp_path):
    write_run(tmp_path / "a", "qr-dqn", "probe/1", 0, [1, 2, 3, 2])
    write_run(tmp_path / "b", "iqn", "probe/1", 0, [1, 2, 3, 4])
    found = compute_results(read_runs(tmp_path).cells(), seed=0)
    unknown = (-math.inf, math.inf)
    assert found.final["iqn", "probe/1"] == (4.0, *unknown)
    assert found.differences["iqn", "qr-dqn", "probe/1"] == ((2.0, *unknown), 1)
    assert found.improvement["iqn", "qr-dqn"] == (1.0, *unknown)
    assert found.aggregates is not None
    assert found.aggregates.statistics["IQM"]["qr-dqn"] == pytest.approx((1 / 3, *unknown))
    difference, pairs = found.aggregates.differences["iqn", "qr-dqn"]
    assert difference == pytest.approx((2 / 3, *unknown))
    assert pairs == 1
    assert not found.aggregates.profiles["iqn"].bounded
    made = make_page(read_content(tmp_path))
    assert "One seed that counts, so no interval: qr-dqn on probe/1; iqn on probe/1." in made


def test_goals_lie_between_the_lowest_and_the_best_mean_and_may_never_be_reached(tmp_path):
    found = compute_results(read_runs(three(tmp_path)).cells(), seed=0)
    half, most = found.goals["qr-dqn", "probe/1"]
    assert (half.median, half.reached, half.runs) == (2000.0, 2, 3)
    assert (most.median, most.reached) == (math.inf, 0)
    assert found.goals["iqn", "probe/1"][1].reached == 1


def test_scores_at_different_steps_are_not_compared(tmp_path):
    write_run(tmp_path / "a", "qr-dqn", "probe/1", 0, [1, 2, 3, 2])
    write_run(tmp_path / "b", "iqn", "probe/1", 0, [1, 2])
    write_run(tmp_path / "c", "iqn", "probe/2", 0, [1, 2, 3, 4])
    found = compute_results(read_runs(tmp_path).cells(), seed=0)
    assert not found.differences
    assert not found.improvement
    assert found.aggregates is None
    assert found.left_out["probe/1"] == "last evaluations at different steps: qr-dqn at 4,000, iqn at 2,000"
    assert found.left_out["probe/2"] == "not evaluated there yet: qr-dqn"
    assert "so far, at step 2,000" in make_page(read_content(tmp_path))


def test_the_seed_of_the_bootstrap_moves_intervals_and_no_values(tmp_path):
    draws = np.random.default_rng(0).normal(3, 1, (2, 5))
    for arm, ends in zip(("qr-dqn", "iqn"), draws.tolist(), strict=True):
        for seed, end in enumerate(ends):
            write_run(tmp_path / f"{arm}-{seed}", arm, "probe/1", seed, [0, end], length=2)
    cells = read_runs(tmp_path).cells()
    one, same, other = (compute_results(cells, seed).improvement["iqn", "qr-dqn"] for seed in (0, 0, 1))
    assert one == same
    assert one.value == other.value
    of_means = [
        found.statistics["mean"]["iqn"] for seed in (0, 1) if (found := compute_results(cells, seed).aggregates)
    ]
    assert of_means[0].value == of_means[1].value
    assert of_means[0].low != of_means[1].low


def test_numbers_have_digits_that_suit_their_size():
    assert [format_number(value) for value in (0.12345, 1.2345, -123.45, 12345.6, -0.0001)] == [
        "0.123",
        "1.23",
        "−123.5",
        "12,346",
        "0.000",
    ]
    assert format_number(0.5, scale=300.0) == "0.5"
    assert [format_steps(count) for count in (500.0, 250_000.0, 1_500_000.0)] == ["500", "250k", "1.5M"]
    assert [format_duration(seconds) for seconds in (5.0, 90.0, 9000.0)] == ["5.0 seconds", "1.5 minutes", "2.5 hours"]


# Content


def test_only_settings_in_which_algorithms_differ_are_listed(content):
    found = content.settings
    assert found["agent.representation"]["qr-dqn"] == "FixedQuantiles"
    assert found["agent.representation"]["iqn"] == "ImplicitQuantiles"
    assert found["agent.representation.num_cosines"]["qr-dqn"] == "–"
    assert "agent.discount" not in found
    assert not {"env", "seed", "num_seeds"} & set(found)


def test_a_setting_that_depends_on_the_task_says_on_which_and_is_compared_there(tmp_path):
    write_run(tmp_path / "a", "qr-dqn", "probe/1", 0, [1])
    write_run(tmp_path / "b", "qr-dqn", "minatar/breakout", 0, [1], length=1)
    write_run(tmp_path / "c", "qr-dqn+long", "minatar/breakout", 0, [1], length=2)
    write_run(tmp_path / "d", "iqn", "probe/1", 0, [1])
    found = find_differing_settings(read_runs(tmp_path))
    assert found["steps"] == {"qr-dqn": "1000 (minatar/breakout); 4000 (probe/1)", "qr-dqn+long": "2000", "iqn": "4000"}
    assert "evaluate_every" not in found  # MinAtar has another one than probes, but for all algorithms


def test_a_configuration_is_flattened_with_types_under_the_name_of_their_part():
    config = {"type": "RunConfig", "env": "x", "agent": {"type": "A", "list": [1, None], "part": {"type": "B"}}}
    assert flatten_config(config) == {"agent": "A", "agent.list": "[1, null]", "agent.part": "B"}


def test_runs_of_one_algorithm_with_different_settings_are_pointed_out(tmp_path):
    write_run(tmp_path / "a", "qr-dqn", "probe/1", 0, [1, 2, 3, 4])
    write_run(tmp_path / "b", "qr-dqn", "probe/1", 1, [1, 2], length=2)
    notes = read_content(tmp_path).notes
    assert "Runs of one algorithm and task with different settings: qr-dqn on probe/1 (steps)." in notes


def test_nothing_to_report_is_an_error_that_says_what_was_there(tmp_path):
    with pytest.raises(ValueError, match="holds neither runs nor results"):
        read_content(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        read_content(tmp_path)


def test_a_run_without_evaluations_is_mentioned(tmp_path):
    write_run(tmp_path / "a", "qr-dqn", "probe/1", 0, [])
    made = make_page(read_content(tmp_path))
    assert "No evaluation yet that all runs share" in made
    assert "Learning curves" not in made


def test_claims_below_the_folder_become_the_ledger(tmp_path):
    measured = {"value": 1.52345, "low": 1.5, "high": 1.6}
    texts = {"name": "c", "where": "§ 4", "statement": "a < b", "meaning": "a ratio", "verdict": "holds"}
    for name, item in (("good", {"item": "chain", "claims": [texts | {"measured": measured}]}), ("bad", {"item": 3})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "claims.json").write_text(json.dumps(item))
    made = read_content(tmp_path)
    assert [each.name for each in made.collection.unreadable] == ["bad"]
    text = make_page(made)
    assert "a &lt; b" in text
    assert "1.523 [1.5, 1.6]: a ratio" in text
    assert '<span class="holds">holds</span>' in text
    assert "of 1 claims 1 holds, 0 fails and 0 depends" in text


# The page


class Reader(HTMLParser):
    """Collects the elements and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name in ("src", "style")]

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_is_the_same_byte_for_byte_and_needs_nothing_else(campaign, content):
    made = make_page(content)
    assert made == make_page(read_content(campaign))
    assert len(made) < 200_000
    assert re.findall(r"https?://[^\"' ]*", made) == ["http://www.w3.org/2000/svg"]  # a name, which nobody fetches
    assert str(campaign.parent) not in made


def test_names_cannot_break_out_of_the_page(content):
    reader = Reader()
    reader.feed(make_page(content))
    assert "img" not in reader.tags
    assert not reader.handlers
    assert reader.tags.count("script") == 2
    assert HOSTILE in reader.texts
    assert "<b>" not in make_page(content)


def test_data_in_a_script_holds_no_sign_that_could_end_it():
    text = dump_script({"name": HOSTILE, "ends": ["\u2028", "\u2029"]})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"name": HOSTILE, "ends": ["\u2028", "\u2029"]}


def test_text_and_attributes_are_escaped_and_markup_is_not():
    assert element("p", {"title": '"<'}, "a<b", Html("<i></i>")).text == '<p title="&quot;&lt;">a&lt;b<i></i></p>'
    made = table("<c>", ("<h>",), [("<r>", "<x>", element("td", {}, "<y>"))]).text
    assert not set(re.findall(r"<(\w+)", made)) - {"div", "table", "caption", "thead", "tbody", "tr", "th", "td"}


def test_the_policy_allows_the_pages_own_style_and_script_only(content):
    made = make_page(content)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', made)
    assert policy is not None
    rules = policy.group(1).replace("&#x27;", "'")
    assert rules.startswith("default-src 'none'; ")
    assert "unsafe" not in rules
    for tag in ("style", "script"):
        own = re.search(rf"<{tag}>(.*?)</{tag}>", made, flags=re.DOTALL)
        assert own is not None
        digest = base64.b64encode(hashlib.sha256(own.group(1).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in rules


def test_the_overview_counts_runs_and_names_what_is_wrong(content):
    made = make_page(content)
    assert "19 finished, 1 unfinished, 0 failed, 1 left out" in made
    assert (
        "Unfinished and failed runs beside finished ones count only as thin lines: qr-dqn on probe/1 (1 of 4)." in made
    )
    assert "runs/damaged" in made
    assert "78,000 over all runs and seeds" in made


def test_the_overview_names_machines_and_says_where_none_is_known(tmp_path, content):
    assert "<dt>Machine</dt><dd>not recorded</dd>" in make_page(content)
    write_run(tmp_path / "a", "qr-dqn", "probe/1", 0, [1, 2, 3, 4])
    for seed in (1, 2):
        run = write_run(tmp_path / f"b{seed}", "qr-dqn", "probe/1", seed, [1, 2, 3])
        run.append_timing({"step": 4000, "time/fps": 1.0, "machine": "a <fast> one"})
    made = make_page(read_content(tmp_path))
    assert "<dt>Machine</dt><dd>a &lt;fast&gt; one; not recorded for 1 run</dd>" in made


def test_what_is_lost_stands_on_the_page_and_on_the_screen_and_shortens_no_other_curve(tmp_path, capsys):
    three(tmp_path / "runs")
    cut = tmp_path / "runs" / "iqn-1"
    lines = (cut / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    for name in ("SHA256SUMS", "DONE"):
        (cut / name).unlink()
    (cut / "DONE").write_text('{"step": 4000}')  # as an earlier version had it
    (cut / "metrics.jsonl").write_bytes(b"".join(lines[:3]))
    report(tmp_path / "runs", tmp_path / "page.html", agents=False)
    sentence = "seed 1: no finite evaluation at step 4,000; left out of the curve and of the last evaluations"
    assert f"note: iqn-1: {sentence}" in capsys.readouterr().out
    made = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f'<th scope="row">iqn-1</th><td>{sentence}</td>' in made
    assert "1 of 6 finished runs are unverified: none were kept, or they cannot be read" in made
    found = read_content(tmp_path / "runs")
    (chart,) = charts.curve_charts(found)
    assert [series["x"] for series in chart["series"]] == [[1000, 2000, 3000, 4000]] * 2
    # Seeds 0 and 2 of either: 1 and 3 against 3 and 6.
    assert found.results.differences["iqn", "qr-dqn", "probe/1"].pairs == 2
    assert found.results.final["iqn", "probe/1"].value == 4.5


def test_a_seed_that_lacks_an_earlier_evaluation_counts_in_the_last_ones(tmp_path):
    three(tmp_path / "runs")
    run = write_run(tmp_path / "runs" / "hole", "iqn", "probe/1", 3, [5, 5, 5])
    run.append({"step": 3500, "seed": 3, "eval/mean_reward": math.nan})
    run.append({"step": 4000, "seed": 3, "eval/mean_reward": 8.0})
    run.finish({"step": 4000})
    found = read_content(tmp_path / "runs")
    assert found.collection.losses == (("hole", "seed 3: no finite evaluation at step 3,500; left out of the curve"),)
    assert found.results.final["iqn", "probe/1"].value == 5.0  # of 3, 3, 6 and 8
    assert [goal.runs for goal in found.results.goals["iqn", "probe/1"]] == [3, 3]


def test_a_folder_whose_name_is_no_text_has_a_page(tmp_path):
    odd = Path(os.fsdecode(bytes(tmp_path) + b"/odd\xff"))
    try:
        odd.mkdir()
    except OSError:
        pytest.skip("this file system has names in UTF-8 only")
    write_run(odd / "a", "qr-dqn", "probe/1", 0, [1, 2, 3, 4])
    assert "Report: odd\\udcff" in make_page(read_content(odd)).encode().decode()


def test_failed_runs_are_listed_with_their_cause(tmp_path):
    directory = write_run(tmp_path / "a", "qr-dqn", "probe/1", 0, [1, 2])
    (directory.path / "FAILED").write_text(json.dumps({"cause": "OSError: <full>"}))
    made = make_page(read_content(tmp_path))
    assert "0 finished, 0 unfinished, 1 failed" in made
    assert "OSError: &lt;full&gt;" in made


def test_long_curves_are_thinned_with_both_ends_kept(tmp_path):
    write_run(tmp_path / "a", "qr-dqn", "probe/1", 0, [float(place) for place in range(1000)], length=1000)
    (chart,) = charts.curve_charts(read_content(tmp_path))
    (series,) = chart["series"]
    assert len(series["x"]) == charts.MOST_POINTS
    assert (series["x"][0], series["x"][-1]) == (1000, 1_000_000)
    assert (series["y"][0], series["y"][-1]) == (0.0, 999.0)


def test_bands_need_three_seeds_and_thin_lines_two(tmp_path, content):
    by_arm = {series["arm"]: series for series in charts.curve_charts(content)[0]["series"]}
    own = content.collection.arms.index("qr-dqn")
    assert len(by_arm[own]["thin"]) == 4  # the one that is not finished, too
    assert by_arm[own]["y"] == pytest.approx([0.2, 0.5, 1.0, 2.0])  # which does not count
    assert by_arm[own]["low"][-1] == pytest.approx(2 - T_OF_THREE / math.sqrt(3), rel=1e-5)
    write_run(tmp_path / "a", "qr-dqn", "probe/1", 0, [1])
    (alone,) = charts.curve_charts(read_content(tmp_path))[0]["series"]
    assert alone["thin"] == []
    assert "low" not in alone


def test_a_log_scale_for_returns_is_offered_only_if_all_are_positive(tmp_path, content):
    assert 'data-switch="log-returns"' in make_page(content)
    write_run(tmp_path / "a", "qr-dqn", "probe/1", 0, [-1, 2])
    assert 'data-switch="log-returns"' not in make_page(read_content(tmp_path))


def test_algorithms_look_the_same_on_the_page_and_in_figures(content):
    styles = charts.PageBuilder(content).styles
    legend = {line.get_label(): line for line in figures.draw_figures(content)["curves"].legends[0].get_lines()}
    names = shorten_labels(styles)
    assert {names[arm]: style.color for arm, style in styles.items()} == {
        name: to_hex(line.get_color()) for name, line in legend.items()
    }
    assert {names[arm] for arm, style in styles.items() if charts.svg_dash(style)} == {
        name for name, line in legend.items() if line.is_dashed()
    }


# Figures


def test_nothing_is_drawn_beyond_the_edges_of_a_figure(content):
    for name, figure in figures.draw_figures(content).items():
        FigureCanvasAgg(figure).draw()
        drawn = figure.get_tightbbox()
        width, height = figure.get_size_inches()
        assert -0.01 < drawn.x0 < drawn.x1 < width + 0.01, name
        assert -0.01 < drawn.y0 < drawn.y1 < height + 0.01, name


def test_names_in_figures_are_short_printable_and_still_different():
    long = ("a" * 30, "a" * 31, "a$b$", "x\u2028y")
    assert list(shorten_labels(long).values()) == [f"{'a' * 23}…", f"{'a' * 23}… (2)", r"a\$b\$", "x y"]


def test_figures_are_written_in_three_formats_and_are_the_same_byte_for_byte(tmp_path):
    found = read_content(three(tmp_path / "runs"))
    paths = figures.write_figures(found, tmp_path / "one")
    names = ("curves", "differences", "aggregates", "profiles", "improvement")
    assert [path.name for path in paths] == [f"{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")]
    for path in figures.write_figures(found, tmp_path / "two"):
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes(), path.name
    for name in ("all.pdf", "again.pdf"):
        figures.write_pdf(found, tmp_path / name)
    assert (tmp_path / "all.pdf").read_bytes() == (tmp_path / "again.pdf").read_bytes()
    assert b"/Count 5" in (tmp_path / "all.pdf").read_bytes()


def test_without_an_evaluation_there_is_no_pdf(tmp_path):
    write_run(tmp_path / "a", "qr-dqn", "probe/1", 0, [])
    with pytest.raises(ValueError, match="no evaluation that could be drawn"):
        figures.write_pdf(read_content(tmp_path), tmp_path / "all.pdf")


# Saved agents


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """An agent as it begins, with an evaluation that is written by hand."""
    folder = tmp_path_factory.mktemp("saved")
    small = {"network.widths": (8,), "replay.capacity": 100, "learning_starts": 64, "batch_size": 16}
    directory = RunDirectory(api.make("qr-dqn", env="CartPole-v1", seed=3, overrides=small).save(folder / "run"))
    for step, returns in ((40, [9.0, 9.0]), (80, [9.0, 8.0, 12.0])):
        directory.append({"step": step, "seed": 3, "eval/mean_reward": float(np.mean(returns))})
        directory.write_evaluation(f"seed_3_step_{step:012d}", {"step": step, "seed": 3, "returns": returns})
    return folder


def test_a_saved_agent_shows_what_it_predicts_and_what_it_got(saved):
    (run,) = find_saved_agents(read_runs(saved).cells().values())
    found = predict_returns(run)
    assert (found.arm, found.env, found.seed, found.step, found.kind) == ("qr-dqn", "CartPole-v1", 3, 0, "quantiles")
    assert found.evaluated_at == 80
    np.testing.assert_array_equal(found.evaluation, [8.0, 9.0, 12.0])
    assert [action.name for action in found.actions] == ["action 0", "action 1"]
    agent = api.load(saved / "run")
    with contextlib.closing(play_episode(agent, EPISODE_SEED, render=False)) as moments:
        dist = agent.predict_distribution(next(moments).observation)
    for action, values in zip(found.actions, np.asarray(dist.values), strict=True):
        np.testing.assert_allclose(action.returns, np.sort(values), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(action.shares, dist.levels, rtol=1e-5)
        assert action.q == pytest.approx(values.mean(), abs=1e-5)  # QR-DQN's Q is the mean of its quantiles
    assert found.best == int(np.argmax([action.q for action in found.actions]))


@pytest.mark.filterwarnings("ignore:passing over a damaged checkpoint")
def test_agents_that_cannot_be_loaded_are_named_and_the_rest_is_shown(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "runs")
    for manifest in (tmp_path / "runs" / "run" / "checkpoints").glob("step_*/manifest.json"):
        manifest.write_text("{")
    broken = gather(tmp_path, agents=True, seed=0, tick=silent)
    assert not broken.predicted
    assert [reason.partition(": ")[0] for reason in broken.not_loaded] == ["runs/run"]
    assert str(tmp_path) not in broken.not_loaded[0]
    assert "Could not be loaded" in make_page(broken)
    assert "Return distributions" not in make_page(read_content(tmp_path))


def test_a_module_that_ends_the_process_ends_no_report(tmp_path, monkeypatch, capsys):
    (tmp_path / "ending_module.py").write_text("import sys\nsys.exit('not here')\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = write_run(tmp_path / "runs" / "bad", "qr-dqn", "ending_module:Some-v0", 0, [1, 2, 3, 4])
    (run.checkpoints / "step_000000004000").mkdir(parents=True)
    report(tmp_path / "runs", tmp_path / "page.html", allow_imports=True)
    assert "SystemExit(&#x27;not here&#x27;)" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "note: no saved agent is shown of bad: a file is damaged: SystemExit('not here')" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        '{"step": 80, "returns": []}',
        '{"step": 80, "returns": [1e200]}',
        '{"step": 80, "returns": ["a"]}',
        "[" * 100_000,
        "[]",
    ],
)
def test_an_evaluation_that_is_none_is_said(saved, tmp_path, text):
    shutil.copytree(saved, tmp_path / "runs")
    file = tmp_path / "runs" / "run" / "evaluations" / "seed_3_step_000000000080.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"seed_3_step_000000000080.json"):
        _read_last_evaluation(tmp_path / "runs" / "run", 3)


def test_distributions_are_drawn_as_steps_unless_they_are_quantiles():
    actions = (
        ActionPrediction("action 0", 0.5, np.array([0.0, 1.0]), np.array([0.5, 1.0])),
        ActionPrediction("action 1", 1.0, np.array([0.0, 1.0]), np.array([0.0, 1.0])),
    )
    got = np.array([1.0, 1.0, 3.0, 3.0])
    atoms = AgentPrediction("c51", "probe/1", 0, 80, "categorical", 0.99, actions, 1, 80, got)
    left, right = charts.distribution_charts(atoms, arm=2)
    first, last = left["series"]
    assert (first["arm"], last["arm"]) == (None, 2)  # the preferred action lies on top
    assert (first["x"], first["y"]) == ([0.0, 0.0, 1.0], [0.0, 0.5, 1.0])
    assert first["stepped"]
    assert right is not None
    (line,) = right["series"]
    assert line["x"] == pytest.approx([1 - 0.12, 1, 3, 3 + 0.12])
    assert line["y"] == [0.0, 0.5, 1.0, 1.0]
    quantiles, none = charts.distribution_charts(replace(atoms, kind="quantiles", evaluation=np.zeros(0)), arm=2)
    assert not quantiles["series"][0]["stepped"]
    assert none is None


# The command


def test_the_command_writes_the_page_the_figures_and_the_pdf(saved, tmp_path, capsys):
    report(saved, tmp_path / "new" / "page.html", tmp_path / "figures", tmp_path / "all.pdf")
    made = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert "Return distributions" in made
    assert "prefers action" in made
    assert (tmp_path / "figures" / "curves.pdf").exists()
    assert (tmp_path / "all.pdf").exists()
    assert f"wrote {tmp_path / 'all.pdf'}" in capsys.readouterr().out


def test_the_command_prints_differences_from_the_nearest_algorithm(campaign, tmp_path, capsys):
    report(three(tmp_path / "runs"), tmp_path / "page.html", agents=False)
    reach = T_OF_THREE / math.sqrt(3)  # of differences 2, 1 and 3
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["iqn", "qr-dqn", "probe/1", "3", "2.00", f"[−{reach - 2:.2f},", f"{2 + reach:.2f}]"] in said
    report(campaign, tmp_path / "page.html", agents=False)
    assert ["qr-dqn+wide", "qr-dqn", "probe/2"] in [line.split()[:3] for line in capsys.readouterr().out.splitlines()]


def test_the_command_says_what_is_left_out(campaign, tmp_path, capsys):
    report(campaign, tmp_path / "page.html", agents=False)
    assert "note: runs/damaged is left out" in capsys.readouterr().out


def test_the_command_refuses_what_makes_no_sense(campaign, tmp_path):
    for arguments, message in (
        ({"out": tmp_path / "page"}, "ends in .html"),
        ({"out": tmp_path / "page.html", "pdf": tmp_path / "x.png"}, "ends in .pdf"),
        ({"out": tmp_path / "page.html", "seed": -1}, "--seed must not be negative"),
    ):
        with pytest.raises(UsageError, match=message):
            report(campaign, **arguments)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another place with --out"):
        report(campaign, tmp_path / "file" / "page.html", agents=False)
    with pytest.raises(ValueError, match="holds neither runs nor results"):
        report(tmp_path, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
