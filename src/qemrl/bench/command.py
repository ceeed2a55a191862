"""The command `qemrl bench value`."""

from pathlib import Path
from typing import Any

import rich

from qemrl.console import UsageError, require, table, working, write_json


def bench_value(seconds: float = 20.0, json_file: Path | None = None, peers_folder: Path | None = None) -> None:
    """Time value agents: against sb3-contrib's QR-DQN, with QEM against without, and against the hardware.

    It takes about a quarter of an hour, and some minutes more the first time, when it installs the peer in a virtual
    environment of its own. Leave the machine alone meanwhile.

    Args:
        seconds: How long each library is timed in each task, with each number of threads.
        json_file: Write the figures to this file as well.
        peers_folder: The folder for virtual environments; by default one in the user's cache.
    """
    require(0 < seconds < 1e6, f"--seconds must be positive; got {seconds:g}")
    from qemrl.bench import peers, value

    folder = peers.default_folder() if peers_folder is None else peers_folder
    try:
        with working("timing value agents") as status:
            report = value.run(seconds, folder, lambda what: status.update(f"{what} …"))
    except peers.PeerError as error:
        raise UsageError(str(error)) from error
    show(report)
    write_json(report.as_json(), json_file)


def show(report: Any) -> None:
    """Print a report as three tables."""
    _show_speeds(report)
    _show_overheads(report)
    _show_shares(report)


def _verdict(text: str, holds: bool | None) -> str:
    return "" if holds is None else f"[{'green' if holds else 'red'}]{text} {'✓' if holds else '✗'}"


def _show_speeds(report: Any) -> None:
    from qemrl.bench.value import TASKS

    shown = table(
        "Steps per second, learning included", "task", ">ours", ">threads", ">sb3", ">threads", ">ratio", ">least"
    )
    for line in report.speeds:
        title = TASKS[line.task].title if line.seeds == 1 else f"  {line.seeds} seeds at once"
        ours, peer = f"{line.steps_per_second:,.0f}", f"{line.peer_steps_per_second:,.0f}"
        least = _verdict(f"{line.target:g}", line.holds) if line.target else ""
        shown.add_row(title, ours, str(line.threads), peer, str(line.peer_threads), f"{line.ratio:.2f}", least)
    rich.print(shown)


def _show_overheads(report: Any) -> None:
    shown = table(
        "One update and the actions between updates",
        "settings",
        "with QEM",
        ">ms",
        "without",
        ">ms",
        ">ratio",
        ">limit",
    )
    for line in report.overheads:
        times = (line.preset, f"{line.milliseconds:.2f}", line.peer, f"{line.peer_milliseconds:.2f}")
        shown.add_row(line.domain, *times, f"{line.ratio:.3f}", _verdict(f"{line.limit:g}", line.holds))
    rich.print(shown)


def _show_shares(report: Any) -> None:
    shown = table(
        "An update against the peak of matrix products", "task", ">MFLOP", ">ms", ">GFLOP/s", ">peak", ">share"
    )
    for line in report.shares:
        rates = (f"{line.operations / 1e6:,.0f}", f"{line.milliseconds:.2f}", f"{line.gflops:.0f}")
        shown.add_row(line.task, *rates, f"{line.peak_gflops:.0f}", f"{line.share:.0%}")
    rich.print(shown)
