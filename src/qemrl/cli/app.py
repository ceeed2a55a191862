"""The command `qemrl`.

Commands are functions; their arguments are the options and their docstrings the help. What a command needs is
imported when it runs, so that `qemrl list` answers at once.
"""

import contextlib
import math
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rich.markup import escape
from tyro.conf import Positional
from tyro.extras import SubcommandApp

import qemrl
from qemrl.cli import runs as cli_runs
from qemrl.cli.console import (
    UsageError,
    print_table,
    require,
    require_count,
    require_folder,
    require_seed,
    show_status,
    table,
)
from qemrl.cli.guard import guard, outlive_readers
from qemrl.cli.studies import compare, demo, report, show
from qemrl.cli.sweep import sweep
from qemrl.cli.tune import tune
from qemrl.config.suggestions import nearest
from qemrl.experiments.statistics import Interval


def list_known() -> None:
    """Show the agents, estimators and items of the paper that this version knows."""
    from qemrl.agents.names import ACTOR_CRITICS, SETTINGS, VALUE_AGENTS

    for actions, known in (("discrete", VALUE_AGENTS), ("continuous", ACTOR_CRITICS)):
        agents = table(f"Agents for {actions} actions: qemrl train NAME --env ID", "name", "what it is")
        for name, summary in known.items():
            agents.add_row(name, summary)
        print_table(agents)
    print("Environments: any id of Gymnasium; minatar/breakout, asterix, freeway, seaquest, space_invaders, and the")
    print("same with -sparse appended; jax/cartpole, jax/catch, jax/mountain-car, jax/pendulum; jax/deep-sea-5 to -30")
    print("and jax/deep-sea-stochastic-5 to -30; jax/chain-10, -20, -30, -50, -100; probe/1 to 8, probe/c1 to c7\n")
    settings = table("Settings: qemrl train NAME --env ID --settings NAME", "name", "what it is")
    for name, summary in SETTINGS.items():
        settings.add_row(name, summary)
    print_table(settings)
    presets = table("Estimators: qemrl train NAME --env ID --estimator NAME", "name", "what it is")
    for name, preset in qemrl.ESTIMATORS.items():
        presets.add_row(name, preset.summary)
    print_table(presets)
    print('In Python: qemrl.ESTIMATORS["qem"].estimator\n')
    from qemrl.experiments.builtin_grids import builtin_grids
    from qemrl.experiments.builtin_grids import summary as grid_summary
    from qemrl.paper.catalog import ITEMS

    grids = table("Grids: qemrl sweep NAME --out DIR", "name", "what it is")
    for name, text in builtin_grids().items():
        grids.add_row(name, grid_summary(text))
    print_table(grids)
    items = table("Reproductions: qemrl reproduce NAME", "name", "in the paper", "what it shows")
    for item in ITEMS:
        items.add_row(item.name, item.where, item.summary)
    print_table(items)


def fits(
    out: Path = Path("fits"), quantiles: int = 32, noise: float = 0.5, trials: int = 20_000, seed: int = 0
) -> None:
    """Fit four return distributions from noisy quantiles: one figure and one table.

    Args:
        out: The folder for figure.png, figure.svg and data.csv.
        quantiles: How many quantiles each distribution is fitted from, at least 4.
        noise: The standard deviation of each quantile's error; the paper's N(0, 0.25) is 0.5.
        trials: How many sets of random levels the error is averaged over.
        seed: The seed of all randomness.
    """
    require(quantiles >= 4, f"--quantiles must be at least 4, the highest order; got {quantiles}")
    require_count("--quantiles", quantiles, 10_000)
    require_count("--trials", trials, 1_000_000_000)
    require(0 <= noise < math.inf, f"--noise must be finite and not negative; got {noise}")
    require_seed("--seed", seed)
    require_folder(out)
    from qemrl.paper import fits as fitting
    from qemrl.training.machine import require_memory

    levels = 2 * 8 * trials * quantiles  # as they are drawn, and in order
    require_memory(levels, f"--trials {trials} of --quantiles {quantiles}", "give fewer of them")
    with show_status("fitting four distributions"):
        results = fitting.fit_distributions(quantiles, noise, trials, seed)
    title = f"{quantiles} quantiles with noise {noise:g}; errors in standard deviations of the distribution"
    shown = table(title, "distribution", "estimator", ">R²", ">error here", ">RMSE fixed", ">RMSE random")
    for result in results:
        for row in result.rows:
            fit = "" if row.r_squared is None else f"{row.r_squared:.3f}"
            errors = (f"{row.error:+.4f}", f"{row.rmse_fixed:.4f}", f"{row.rmse_random:.4f}")
            last = row is result.rows[-1]
            shown.add_row(
                row.distribution if row is result.rows[0] else "", row.estimator, fit, *errors, end_section=last
            )
    print_table(shown)
    print("error here: of the draw in the figure; RMSE: over all draws, with fixed and with random levels")
    for path in fitting.write(results, noise, out):
        print(f"wrote {path}")


def reproduce(
    name: Positional[str],
    scale: Literal["smoke", "small", "paper"] = "small",
    out: Path = Path("reproduced"),
    seed: int = 0,
    again: bool = False,
) -> None:
    """Run an item of the paper: its numbers, its figure and a verdict on each of its claims.

    Args:
        name: An item of `qemrl list`, or `all`.
        scale: Seconds (smoke), a minute or less (small), or the size that results are reported at (paper).
        out: The folder; each item gets one of its own in it, with data.csv, figure.png, figure.svg and claims.json.
        seed: The seed of all randomness.
        again: Also run items whose results are there already.
    """
    from qemrl.paper import reproduce as runs
    from qemrl.paper.catalog import BY_NAME, ITEMS

    if name != "all" and name not in BY_NAME:
        near = nearest(name, [*BY_NAME, "all"])
        hint = f"did you mean `{near}`?" if near else "`qemrl list` shows all"
        raise UsageError(f"there is no item `{name}`; {hint}")
    require_seed("--seed", seed)
    require_folder(out)
    chosen = ITEMS if name == "all" else (BY_NAME[name],)
    finished: list[str] = []
    try:
        for item in chosen:
            if not again and runs.is_done(out, item, scale, seed):
                print(f"{item.name}: already there, in {out / item.name}; --again runs it again")
            else:
                _run_with_progress(item, scale, seed, out)
            _show_claims(runs.read_report(out, item.name))
            finished.append(item.name)
    except KeyboardInterrupt:
        done = ", ".join(finished) or "nothing"
        print(f"\nqemrl: interrupted; finished: {done}. The same command goes on from there.", file=sys.stderr)
        sys.exit(130)
    if name == "all":
        path = out / "ledger.md"
        path.write_text(runs.ledger(out, ITEMS), encoding="utf-8")
        print(f"wrote {path}")


def _run_with_progress(item: Any, scale: Any, seed: int, out: Path) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from qemrl.paper import reproduce as runs

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task(f"{item.name} ({scale})", total=1.0)
        folder = runs.run_item(item, scale, seed, out, lambda share: progress.update(task, completed=share))
    print(f"{item.name}: wrote {folder}")


def _show_claims(report: Any) -> None:
    colors = {"holds": "green", "fails": "red", "depends": "yellow"}
    shown = table(f"{report['item']} ({report['scale']}, {report['seconds']} s)", "verdict", "claim", "measured")
    for claim in report["claims"]:
        measured = Interval(*(claim["measured"][end] for end in Interval._fields))
        verdict = f"[{colors[claim['verdict']]}]{claim['verdict']}"
        shown.add_row(verdict, claim["name"], escape(str(measured)))
    print_table(shown)
    for note in report["notes"]:
        print(textwrap.fill(f"Note: {note}", width=100))


COMMANDS: dict[str, Any] = {
    "list": list_known,
    "demo": demo,
    "compare": compare,
    "show": show,
    "fits": fits,
    "train": cli_runs.train,
    "resume": cli_runs.resume,
    "evaluate": cli_runs.evaluate,
    "export": cli_runs.export,
    "sweep": sweep,
    "tune": tune,
    "report": report,
    "reproduce": reproduce,
}

OPEN_COMMANDS = ("train", "compare", "tune")
"""Commands that take every setting as an option: which there are depends on their arguments, which they read."""

TRAINING_COMMANDS = ("train", "resume", "compare", "demo", "sweep", "tune", "reproduce")
"""Commands whose work goes on when nobody reads any more what they print."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; `guard` says which exit codes there are."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments in (["--version"], ["-V"]):
        print(f"qemrl {qemrl.__version__}")
        return
    trains = arguments[:1] and arguments[0] in TRAINING_COMMANDS
    with outlive_readers() if trains else contextlib.nullcontext(), guard():
        _check_command(arguments)
        if arguments[:1] and arguments[0] in OPEN_COMMANDS:
            COMMANDS[arguments[0]](arguments[1:])
        else:
            _app().cli(prog="qemrl", description=qemrl.__doc__, args=arguments)


def _app() -> SubcommandApp:
    app = SubcommandApp()
    for name, command in COMMANDS.items():
        app.command(command, name=name)
    return app


def _check_command(arguments: Sequence[str]) -> None:
    """Refuse words that are no text, and suggest the nearest command when one is mistyped."""
    for each in arguments:
        readable = "\0" not in each and not any("\ud800" <= letter <= "\udfff" for letter in each)
        require(readable, f"{each!r} holds bytes that are no text in UTF-8; choose another name")
    word = next(iter(arguments), "-")
    if not word.startswith("-") and word not in COMMANDS:
        near = nearest(word, COMMANDS)
        hint = f"did you mean `qemrl {near}`?" if near else "try `qemrl --help`"
        raise UsageError(f"`qemrl` has no command `{word}`; {hint}")
