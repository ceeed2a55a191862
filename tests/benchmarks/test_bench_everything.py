"""All benches at once: what is measured is kept, what failed is said, and the page is what the file says."""

import json
from pathlib import Path

import pytest

from benchmarks import everything, performance, tabular
from benchmarks.command import bench_all, bench_page, run_benches
from benchmarks.everything import Bench, all_benches
from benchmarks.machine import describe_machine
from benchmarks.peers import PeerError
from qemrl.cli.console import UsageError

ROOT = Path(__file__).parents[2]

SPEED = {
    "task": "cartpole",
    "seeds": 1,
    "steps_per_second": 1234.4,
    "threads": 1,
    "peer": "sb3",
    "peer_steps_per_second": 56.0,
    "peer_threads": 2,
    "ratio": 22.04,
    "target": 8.0,
    "rates": {"qemrl 1, 1 thread": [1234.4], "sb3, 2 threads": [56.0]},
}
OVERHEAD = {
    "family": "atari",
    "preset": "qem-dqn",
    "milliseconds": 10.3,
    "peer": "qr-dqn",
    "peer_milliseconds": 10.0,
    "ratio": 1.03,
    "limit": 1.02,
}
SHARE = {
    "task": "pong",
    "operations": 2 * 10**9,
    "milliseconds": 20.0,
    "gflops": 100.0,
    "peak_gflops": 250.0,
    "share": 0.4,
}
MACHINE = {"cpu": "a processor", "cores": "2", "peer": "torch==1 sb3-contrib==2"}
VALUE = {
    "command": "python -m benchmarks value --seconds 1",
    "date": "2026-01-02",
    "commit": "0123456789" * 4 + " with changes",
    "report": {
        "speeds": [SPEED, SPEED | {"seeds": 3, "target": None}],
        "overheads": [OVERHEAD],
        "shares": [SHARE],
        "machine": MACHINE,
    },
}


def fast(name: str = "tabular", seeds: int = 1) -> Bench:
    """A real bench that takes a second."""
    return Bench(name, f"python -m benchmarks {name} --seeds {seeds}", lambda _: tabular.run(seeds, 20).as_json())


def failing(name: str) -> Bench:
    def measure(tell):
        tell("asking for something")
        raise PeerError("no peer can be made here")

    return Bench(name, f"python -m benchmarks {name}", measure)


def test_the_page_in_the_repository_is_what_its_figures_make():
    record = everything.read(ROOT / "results" / "bench.json")
    assert (ROOT / "docs" / "performance.md").read_text(encoding="utf-8") == performance.make_page(record)


def test_every_bench_is_measured_and_has_a_section_and_a_command():
    names = [bench.name for bench in all_benches(1.0, Path("peers"))]
    assert len(set(names)) == len(names)
    assert set(names) == set(performance.SECTIONS)
    for bench in all_benches(1.0, Path("peers")):
        assert bench.command.startswith(f"python -m benchmarks {bench.name} --")


def test_the_commands_of_a_shorter_measurement_are_others_except_where_nothing_is_shortened():
    long, short = all_benches(12.0, Path("peers")), all_benches(0.5, Path("elsewhere"))
    same = {one.name for one, other in zip(long, short, strict=True) if one.command == other.command}
    assert same == {"tabular"}
    assert [bench.command for bench in long] == [bench.command for bench in all_benches(12.0, Path("elsewhere"))]
    assert short[0].command == "python -m benchmarks estimator --rounds 3"


def test_the_page_shows_sides_ratios_what_is_wanted_and_whether_it_holds():
    page = performance.make_page({"value": VALUE})
    lines = page.splitlines()
    for line in (
        "| `python -m benchmarks value --seconds 1` | 2026-01-02 | 0123456 with changes | cpu a processor, cores 2 "
        "| 1 of 2 |",
        "| CartPole, N=200, update every step | 1,234 | 1 | sb3 | 56 | 2 | 22.04 | 8 | yes |",
        "| CartPole, N=200, update every step, 3 seeds at once | 1,234 | 1 | sb3 | 56 | 2 | 22.04 |  |  |",
        "| atari | qem-dqn | 10.30 | qr-dqn | 10.00 | 1.030 | 1.02 | **no** |",
        "| pong | 2,000 | 20.00 | 100 | 250 | 40% |",
        "Peers: torch==1, sb3-contrib==2.",
    ):
        assert line in lines
    assert "Not measured yet: `python -m benchmarks actor-critic`" in page
    assert "## Scaling" not in page


def test_a_commit_that_is_not_known_is_left_out():
    assert "| 2026-01-02 |  | cpu a processor" in performance.make_page({"value": VALUE | {"commit": None}})


def test_the_page_shows_growth():
    points = [
        {"number": 8, "milliseconds": 0.1234, "steps_per_second": 32414.9},
        {"number": 512, "milliseconds": 250.2, "steps_per_second": 16.0},
    ]
    growth = {"over": "quantiles", "agent": "iqn", "points": points, "exponent": 1.83, "ratio": 2027.1}
    report = {"env": "minatar/breakout", "growths": [growth], "machine": MACHINE}
    lines = performance.make_page({"scaling": VALUE | {"report": report}}).splitlines()
    start = lines.index("### minatar/breakout over quantiles") + 2
    assert lines[start : start + 4] == [
        "| quantiles | 8 | 512 | exponent | ratio |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| iqn: ms | 0.123 | 250 | 1.83 | 2,027 |",
        "| iqn: steps/s | 32,415 | 16 |  |  |",
    ]


def test_one_that_fails_does_not_stop_the_others_and_is_named_at_the_end(tmp_path, capsys):
    path, page = tmp_path / "deep" / "bench.json", tmp_path / "docs" / "page.md"
    with pytest.raises(SystemExit) as exit_:
        run_benches([failing("value"), fast()], path, page, again=False)
    assert exit_.value.code == 1
    shown = capsys.readouterr()
    assert "value failed: PeerError: no peer can be made here" in shown.err
    assert "tabular: done" in shown.out
    record = json.loads(path.read_text(encoding="utf-8"))
    assert set(record) == {"tabular"}
    assert set(record["tabular"]) == everything.FIELDS
    assert record["tabular"]["command"] == "python -m benchmarks tabular --seeds 1"
    assert "QEMRL" in page.read_text(encoding="utf-8")


def test_what_is_there_is_not_measured_again_unless_asked_or_with_another_command(tmp_path, capsys):
    path, page = tmp_path / "bench.json", tmp_path / "page.md"
    old = VALUE | {"command": fast().command, "report": tabular.run(1, 20).as_json()}
    everything.write({"tabular": old, "value": VALUE}, path)
    run_benches([fast()], path, page, again=False)
    assert "already there" in capsys.readouterr().out
    assert everything.read(path) == json.loads(json.dumps({"tabular": old, "value": VALUE}))
    assert "2026-01-02" in page.read_text(encoding="utf-8")  # the page is made again all the same
    for bench, again in ((fast(seeds=2), False), (fast(seeds=2), True)):
        everything.write(everything.read(path) | {"tabular": everything.read(path)["tabular"] | {"date": "old"}}, path)
        run_benches([bench], path, page, again)
        record = everything.read(path)
        assert record["tabular"]["date"] != "old"
        assert record["tabular"]["command"] == "python -m benchmarks tabular --seeds 2"
        assert record["value"] == VALUE


def test_what_was_there_stays_when_a_new_measurement_fails_or_is_interrupted(tmp_path, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    path = tmp_path / "bench.json"
    everything.write({"value": VALUE}, path)
    with pytest.raises(SystemExit) as failed:
        run_benches([failing("value")], path, tmp_path / "page.md", again=True)
    assert failed.value.code == 1
    with pytest.raises(SystemExit) as interrupted:
        run_benches(
            [fast(), Bench("scaling", "python -m benchmarks scaling", interrupt)],
            path,
            tmp_path / "page.md",
            again=False,
        )
    assert interrupted.value.code == 130
    assert "the same command continues from there" in capsys.readouterr().err
    assert everything.read(path)["value"] == VALUE
    assert set(everything.read(path)) == {"value", "tabular"}


@pytest.mark.parametrize("text", ["", "[]", "3", '{"value": {}}', '{"value": 3}', '{"speeds": []}'])
def test_another_file_is_not_overwritten(text, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"mine\.json is not what `python -m benchmarks` writes: move it away"):
        bench_all(json_file=path, page=tmp_path / "page.md")
    with pytest.raises(UsageError, match="is not what"):
        bench_page(path, tmp_path / "page.md")
    assert path.read_text() == text
    assert [file.name for file in tmp_path.iterdir()] == ["mine.json"]


def test_a_page_of_nothing_and_no_time_at_all_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"there is no .*none\.json: `python -m benchmarks` measures"):
        bench_page(tmp_path / "none.json", tmp_path / "page.md")
    with pytest.raises(UsageError, match="--seconds must be positive; got nan"):
        bench_all(seconds=float("nan"))


def test_the_machine_is_described_without_paths():
    described = describe_machine([["torch==1"], ["one==2", "two==3"]])
    assert described["peer"] == "torch==1 one==2 two==3"
    assert {"cpu", "cores", "jax", "numpy", "python"} <= set(described)
    assert "peer" not in describe_machine()
    for value in described.values():
        assert value
        assert "/" not in value
