"""The commands of `python -m benchmarks`."""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qemrl.cli.console import UsageError, print_table, require, show_status, table, usage, write_json

JSON_FILE, PAGE = Path("results/bench.json"), Path("docs/performance.md")
"""Where `python -m benchmarks` keeps figures, and the page that it makes of them."""


MOST_SHOWN = 20
"""How many failures of the chaos campaign are printed; its file has more."""


def bench_all(
    seconds: float = 10.0,
    json_file: Path = JSON_FILE,
    page: Path = PAGE,
    peers_folder: Path | None = None,
    again: bool = False,
) -> None:
    """Run all benches, keep their figures in a file and make a page of them.

    It takes about half an hour, and some minutes more the first time, when it installs the peers in virtual
    environments of their own. Leave the machine alone meanwhile. Figures are kept after each bench, and the same
    command continues from there.

    Args:
        seconds: How long each library is timed in each task, with each number of threads; most else is in proportion.
        json_file: The file for figures. What is there of the same command is not measured again.
        page: The Markdown page that is made of them.
        peers_folder: The folder for virtual environments; by default one in the user's cache.
        again: Measure everything anew.
    """
    require(0 < seconds < 1e6, f"--seconds must be positive; got {seconds:g}")
    from benchmarks import everything, peers

    benches = everything.all_benches(seconds, peers.default_folder() if peers_folder is None else peers_folder)
    run_benches(benches, json_file, page, again)


def run_benches(benches: Sequence[Any], json_file: Path, page: Path, again: bool) -> None:
    """Measure the benches that are missing, or all, and make the page; exits with 1 if one failed."""
    from benchmarks import everything

    with usage():
        record = everything.read(json_file)
        wanted = list(benches) if again else everything.missing(benches, record)
        if kept := [bench.name for bench in benches if bench not in wanted]:
            print(f"already there, in {json_file}: {', '.join(kept)}; --again measures everything anew")
        start = time.perf_counter()
        try:
            with show_status("starting") as status:
                failed = everything.measure(
                    wanted,
                    json_file,
                    lambda doing: status.update(f"{doing} …"),
                    lambda name: print(
                        f"{name}: done, {time.perf_counter() - start:,.0f} s after the start", flush=True
                    ),
                )
        except KeyboardInterrupt:
            done = f"what was measured is in {json_file}; the same command continues from there"
            print(f"\nbenchmarks: interrupted; {done}", file=sys.stderr)
            sys.exit(130)
    if json_file.exists():
        bench_page(json_file, page)
    for name, error in failed.items():
        print(f"benchmarks: {name} failed: {type(error).__name__}: {error}", file=sys.stderr)
    if failed:
        print("benchmarks: the same command tries again what failed", file=sys.stderr)
        sys.exit(1)


def bench_page(json_file: Path = JSON_FILE, page: Path = PAGE) -> None:
    """Make the page of what `python -m benchmarks` measured, without measuring.

    Args:
        json_file: The file with the figures.
        page: The Markdown page.
    """
    require(json_file.exists(), f"there is no {json_file}: `python -m benchmarks` measures and writes it")
    from benchmarks import everything, performance

    with usage():
        text = performance.make_page(everything.read(json_file))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    print(f"wrote {page}")


def bench_estimator(rounds: int = 60, pytorch: bool = True, json_file: Path | None = None) -> None:
    """Time QEM against the plain mean and against a forward pass of a small network.

    Args:
        rounds: How many turns each function gets; ratios are medians over the rounds.
        pytorch: Time it on PyTorch tensors, too.
        json_file: Write the figures to this file as well.
    """
    require(rounds >= 1, f"--rounds must be at least 1; got {rounds}")
    from benchmarks import estimator

    with show_status("timing estimators"):
        report = estimator.run(rounds, pytorch)
    columns = ("levels", "shape", "timed", "what", ">µs", "peer", ">its µs", ">ratio", ">limit")
    shown = table("Time per batch, compiled by JAX; or on PyTorch tensors, with one thread", *columns)
    colors = {True: "[green]", False: "[red]", None: ""}
    for line in report.comparisons:
        limit = f"{colors[line.holds]}{line.most} {'✓' if line.holds else '✗'}" if line.most else ""
        times = (f"{line.microseconds:.1f}", line.peer, f"{line.peer_microseconds:.1f}", f"{line.ratio:.3f}")
        shown.add_row(line.levels, str(line.shape), line.timed, line.what, *times, limit)
    print_table(shown)
    layers = " → ".join(str(width) for width in estimator.NETWORK)
    print(f"network: {layers}, {report.comparisons[2].shape[0]} inputs at once; {report.machine['device']}")
    write_json(report.as_json(), json_file)


def bench_tabular(seeds: int = 10, steps: int = 150_000, json_file: Path | None = None) -> None:
    """Time tabular QDRL and QEMRL on FrozenLake against plain NumPy.

    Args:
        seeds: How many seeds are learned at once.
        steps: How many transitions each of them sees, a multiple of 10.
        json_file: Write the figures to this file as well.
    """
    require(seeds >= 1, f"--seeds must be at least 1; got {seeds}")
    require(steps >= 10 and steps % 10 == 0, f"--steps must be a multiple of 10; got {steps}")
    from benchmarks import tabular

    with show_status("timing tabular learning"):
        report = tabular.run(seeds, steps)
    title = f"FrozenLake 4x4, {tabular.NUM_QUANTILES} quantiles, {seeds} seeds of {steps} steps"
    shown = table(title, "what", ">steps/s", ">NumPy steps/s", ">ratio", ">limit", ">compiling")
    for line in report.comparisons:
        limit = f"[{'green' if line.holds else 'red'}]{line.target:.0f} {'✓' if line.holds else '✗'}"
        rates = (f"{line.steps_per_second:,.0f}", f"{line.numpy_steps_per_second:,.0f}", f"{line.ratio:.1f}")
        shown.add_row(line.algorithm, *rates, limit, f"{line.compile_seconds:.1f} s")
    print_table(shown)
    write_json(report.as_json(), json_file)


def bench_learning(
    contests: tuple[str, ...] = (),
    out: Path = Path("results/learning"),
    page: Path = Path("docs/learning.md"),
    cores: tuple[int, ...] = (),
    peers_folder: Path | None = None,
) -> None:
    """Learn beside the peers: returns at equal steps, and time to a threshold, with five seeds of each.

    It takes some hours, and resumes: a run whose curve is there is not done again. Figure and page are made of what is
    there at the end.

    Args:
        contests: Those to run, by name; all by default, none with `--contests none`.
        out: The folder for curves and the figure.
        page: The Markdown page that is made of them.
        cores: The cores to run on, each with one run at a time; all by default.
        peers_folder: The folder for virtual environments; by default one in the user's cache.
    """
    from benchmarks import learning, peers
    from qemrl.plotting import style
    from qemrl.plotting.curves import draw_curves

    names = [] if contests == ("none",) else list(contests or learning.CONTESTS)
    for name in names:
        require(name in learning.CONTESTS, f"there is no contest {name!r}; choose from {', '.join(learning.CONTESTS)}")
    runs = [run for run in learning.list_runs(names) if not run.path(out).exists()]
    folder = peers.default_folder() if peers_folder is None else peers_folder
    try:
        failed = learning.measure(runs, out, folder, cores or _usable_cores(), lambda doing: print(doing, flush=True))
    except peers.PeerError as error:
        raise UsageError(str(error)) from error
    verdicts = learning.read_verdicts(out)
    if verdicts:
        figure = style.save(draw_curves(learning.make_curves(verdicts)), out, "figure")[0]
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(learning.make_page(verdicts, os.path.relpath(figure, page.parent)), encoding="utf-8")
        print(f"wrote {figure} and {page}")
    for run, cause in failed.items():
        print(f"benchmarks: {run.contest}, {run.side}, seed {run.seed} failed: {cause}", file=sys.stderr)
    if failed:
        sys.exit(1)


def bench_adapters(
    out: Path = Path("results/adapters"),
    page: Path = Path("docs/adapters.md"),
    cores: tuple[int, ...] = (),
    peers_folder: Path | None = None,
) -> None:
    """Learn CartPole with the agents of sb3-contrib and tianshou, with and without QEM: returns and the error of Q.

    It takes an hour, and resumes: a run whose curve is there is not done again.

    Args:
        out: The folder for curves.
        page: The Markdown page that is made of them.
        cores: The cores to run on, each with one run at a time; all by default.
        peers_folder: The folder for virtual environments; by default one in the user's cache.
    """
    from benchmarks import adapters, peers

    folder = peers.default_folder() if peers_folder is None else peers_folder
    try:
        failed = adapters.measure(out, folder, cores or _usable_cores(), lambda doing: print(doing, flush=True))
    except peers.PeerError as error:
        raise UsageError(str(error)) from error
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(adapters.make_page(out), encoding="utf-8")
    print(f"wrote {page}")
    for run, cause in failed.items():
        print(f"benchmarks: {run.arm}, seed {run.seed} failed: {cause}", file=sys.stderr)
    if failed:
        sys.exit(1)


def _usable_cores() -> Sequence[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def bench_scaling(seconds: float = 10.0, json_file: Path | None = None) -> None:
    """Time how cost grows with the number of seeds, of environments and of quantiles.

    It takes some minutes, most of them to compile. Leave the machine alone meanwhile.

    Args:
        seconds: A measure of how long: each number has two turns for each of them.
        json_file: Write the figures to this file as well.
    """
    require(0 < seconds < 1e6, f"--seconds must be positive; got {seconds:g}")
    from benchmarks import performance, scaling

    with show_status("timing laps") as status:
        report = scaling.run(seconds, lambda done: status.update(f"{done} …"))
    for sheet in performance.growth_sheets(report.as_json()):
        shown = table(sheet.title, *sheet.columns)
        for row in sheet.rows:
            shown.add_row(*row)
        print_table(shown)
    print("ms: for the steps between two updates of each environment, and an update for each")
    write_json(report.as_json(), json_file)


def bench_value(seconds: float = 20.0, json_file: Path | None = None, peers_folder: Path | None = None) -> None:
    """Time value agents: against sb3-contrib's QR-DQN, with QEM against without, and against the hardware.

    It takes about a quarter of an hour, and some minutes more the first time, when it installs the peer in a virtual
    environment of its own. Leave the machine alone meanwhile.

    Args:
        seconds: How long each library is timed in each task, with each number of threads.
        json_file: Write the figures to this file as well.
        peers_folder: The folder for virtual environments; by default one in the user's cache.
    """
    from benchmarks import value

    _bench_against_peers("timing value agents", value.run, show_value, seconds, json_file, peers_folder)


def bench_actor_critic(seconds: float = 12.0, json_file: Path | None = None, peers_folder: Path | None = None) -> None:
    """Time actor-critics: against sb3-contrib and SBX, with QEM against without, and against the hardware.

    It takes some minutes, and some more the first time, when it installs the peers in a virtual environment of their
    own. Leave the machine alone meanwhile.

    Args:
        seconds: How long each agent is timed with each number of threads.
        json_file: Write the figures to this file as well.
        peers_folder: The folder for virtual environments; by default one in the user's cache.
    """
    from benchmarks import actor_critic

    _bench_against_peers("timing actor-critics", actor_critic.run, show_actor_critic, seconds, json_file, peers_folder)


def bench_variance(rounds: int = 40, json_file: Path | None = None) -> None:
    """Time agents that estimate V against the same agents with a V that is fixed.

    It takes some minutes. Leave the machine alone meanwhile.

    Args:
        rounds: How often each agent is timed; times are medians.
        json_file: Write the figures to this file as well.
    """
    require(rounds >= 1, f"--rounds must be at least 1; got {rounds}")
    from benchmarks import variance

    with show_status("timing models of V") as status:
        report = variance.run(rounds, lambda done: status.update(f"{done} …"))
    _show_overheads(report, "An update and the actions before it", ("estimated", "fixed"))
    write_json(report.as_json(), json_file)


def bench_representations(rounds: int = 40, json_file: Path | None = None) -> None:
    """Time an update with each representation against the preset that it is derived from.

    It takes some minutes. Leave the machine alone meanwhile.

    Args:
        rounds: How often each agent is timed; times are medians.
        json_file: Write the figures to this file as well.
    """
    require(rounds >= 1, f"--rounds must be at least 1; got {rounds}")
    from benchmarks import representations

    with show_status("timing representations") as status:
        report = representations.run(rounds, lambda done: status.update(f"{done} …"))
    show_representations(report)
    write_json(report.as_json(), json_file)


def show_representations(report: Any) -> None:
    """Print what updates take, and their memory."""
    _show_overheads(report, "One update", ("representation", "against"))
    shown = table("Memory of an update", "settings", "representation", ">MB", "against", ">MB")
    for line in report.memories:
        memory = _format_limit(f"{line.megabytes:,.1f}", line.holds)
        shown.add_row(line.family, line.preset, memory, line.peer, f"{line.peer_megabytes:,.1f}")
    print_table(shown)


def _bench_against_peers(
    what: str,
    run: Callable[[float, Path, Callable[[str], None]], Any],
    present: Callable[[Any], None],
    seconds: float,
    json_file: Path | None,
    peers_folder: Path | None,
) -> None:
    require(0 < seconds < 1e6, f"--seconds must be positive; got {seconds:g}")
    from benchmarks import peers

    folder = peers.default_folder() if peers_folder is None else peers_folder
    try:
        with show_status(what) as status:
            report = run(seconds, folder, lambda done: status.update(f"{done} …"))
    except peers.PeerError as error:
        raise UsageError(str(error)) from error
    present(report)
    write_json(report.as_json(), json_file)


def show_value(report: Any) -> None:
    """Print a report on value agents as three tables."""
    from benchmarks.value import TASKS

    _show_speeds(report, {name: task.title for name, task in TASKS.items()}, "sb3")
    _show_overheads(report, "One update and the actions between updates")
    _show_shares(report)


def show_actor_critic(report: Any) -> None:
    """Print a report on actor-critics as four tables."""
    _show_speeds(report, {line.task: line.task for line in report.speeds}, "peer")
    _show_overheads(report, "One update")
    _show_shares(report)
    _show_engines(report)


def _format_limit(text: str, holds: bool | None) -> str:
    return "" if holds is None else f"[{'green' if holds else 'red'}]{text} {'✓' if holds else '✗'}"


def _show_speeds(report: Any, titles: Mapping[str, str], peer: str) -> None:
    title = "Steps per second, learning included"
    shown = table(title, "task", ">ours", ">threads", f">{peer}", ">threads", ">ratio", ">least")
    for line in report.speeds:
        title = titles[line.task] if line.seeds == 1 else f"  {line.seeds} seeds at once"
        ours, theirs = f"{line.steps_per_second:,.0f}", f"{line.peer_steps_per_second:,.0f}"
        least = _format_limit(f"{line.target:g}", line.holds) if line.target else ""
        shown.add_row(title, ours, str(line.threads), theirs, str(line.peer_threads), f"{line.ratio:.2f}", least)
    print_table(shown)


def _show_overheads(report: Any, title: str, sides: tuple[str, str] = ("with QEM", "without")) -> None:
    shown = table(title, "settings", sides[0], ">ms", sides[1], ">ms", ">ratio", ">limit")
    for line in report.overheads:
        times = (line.preset, f"{line.milliseconds:.2f}", line.peer, f"{line.peer_milliseconds:.2f}")
        shown.add_row(line.family, *times, f"{line.ratio:.3f}", _format_limit(f"{line.limit:g}", line.holds))
    print_table(shown)


def _show_shares(report: Any) -> None:
    shown = table(
        "An update against the peak of matrix products", "task", ">MFLOP", ">ms", ">GFLOP/s", ">peak", ">share"
    )
    for line in report.shares:
        rates = (f"{line.operations / 1e6:,.0f}", f"{line.milliseconds:.2f}", f"{line.gflops:.0f}")
        shown.add_row(line.task, *rates, f"{line.peak_gflops:.0f}", f"{line.share:.0%}")
    print_table(shown)


def _show_engines(report: Any) -> None:
    columns = ("engine", ">steps/s of all", ">cores busy", ">ratio")
    shown = table("Seeds of dsac-mlp on two cores", *columns)
    for engine in report.engines:
        rate = statistics.median(engine.rates)
        shown.add_row(engine.name, f"{rate:,.0f}", f"{engine.cores:.2f}", f"{engine.ratio:.2f}")
    print_table(shown)
    print(f"Most steps: {report.best_engine.name}.")


def chaos(
    minutes: float = 60.0,
    seed: int | None = None,
    out: Path = Path("results/chaos.json"),
    cores: int | None = None,
    parts: tuple[str, ...] = (),
    subjects: tuple[str, ...] = (),
    trial: str | None = None,
    work: Path | None = None,
    again: bool = False,
) -> None:
    """Kill runs, damage files and make calls that make no sense, and count what does not hold: it should be nothing.

    It takes as long as it is told, and resumes: the same command goes on with the trials that come next. It exits
    with 1 if something did not hold.

    Args:
        minutes: For how long trials are made now.
        seed: Of all randomness; by default that of the file, or one that is drawn and printed.
        out: The file that keeps what was tried and what failed.
        cores: How many trials are made at once; by default one for each core.
        parts: Which of kills, damage, calls, cluster; by default all.
        subjects: Which runs are disturbed, such as host-loop, compiled-loop, sweep; by default all. Part of what a
            trial is made from, as the seed is.
        trial: Do this one again, PART:NUMBER, and print what it finds; nothing is kept.
        work: A folder for runs; by default one that is removed in the end.
        again: Begin anew, whatever the file holds.
    """
    import secrets
    import tempfile

    from benchmarks.chaos import campaign
    from benchmarks.chaos.runs import SUBJECTS, SWEEP
    from benchmarks.chaos.worker import PARTS

    known = {"part": tuple(PARTS), "subject": (*SUBJECTS, SWEEP)}
    require(0 < minutes < 1e6, f"--minutes must be positive; got {minutes:g}")
    require(cores is None or cores >= 1, f"--cores must be at least 1; got {cores}")
    for what, names in (("part", parts), ("subject", subjects)):
        for name in names:
            require(name in known[what], f"there is no {what} {name!r}; choose from {', '.join(known[what])}")
    record = None if again else campaign.read_record(out)
    given = secrets.randbelow(10**6) if seed is None else seed
    record = record or campaign.Record(given)
    require(seed in (None, record.seed), f"{out} is of the seed {record.seed}; --again begins anew")
    print(f"seed {record.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) if work is None else work
        with show_status("doing runs that nobody disturbs"):
            campaign.prepare(place, subjects or known["subject"])
        if trial is not None:
            part, _, number = trial.partition(":")
            require(part in PARTS and number.isdecimal(), f"--trial is PART:NUMBER, such as kills:3; got {trial}")
            print(json.dumps(campaign.repeat(part, int(number), record.seed, place), indent=1))
            return
        with show_status("beginning") as status:
            campaign.run(
                record, out, place, 60 * minutes, cores or len(_usable_cores()), parts or known["part"], status.update
            )
    shown = table("What was tried, and what did not hold", "what", ">tried", ">lost", ">wrong", ">traceback", ">hang")
    for row in campaign.list_rows(record):
        shown.add_row(*row)
    print_table(shown)
    for failure in record.failures[:MOST_SHOWN]:
        print(f"{failure['trial']}, {failure['kind']}, {failure['verdict']}: {failure['what'][:600]}\n")
    print(f"wrote {out}")
    sys.exit(1 if record.failed else 0)
