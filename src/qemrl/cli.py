"""The command `qemrl`.

Commands are functions; their arguments are the options and their docstrings the help. What a command needs is
imported when it runs, so that `qemrl list` answers at once.
"""

import difflib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rich
from rich import box
from rich.table import Table
from tyro.extras import SubcommandApp

import qemrl


class UsageError(Exception):
    """The user can put it right; the message says how."""


def list_known() -> None:
    """Show the presets and the paper's items that this version knows."""
    presets = _table("Estimator presets", "name", "what it is")
    for name, preset in qemrl.ESTIMATORS.items():
        presets.add_row(name, preset.summary)
    rich.print(presets)
    print('In Python: qemrl.ESTIMATORS["qem"].estimator\n')
    items = _table("Reproductions", "name", "in the paper", "command")
    items.add_row("fitted-quantiles", "appendix C: fitted quantiles, R² of orders 2 to 4", "qemrl demo")
    rich.print(items)


def demo(
    out: Path = Path("demo"), quantiles: int = 32, noise: float = 0.5, trials: int = 20_000, seed: int = 0
) -> None:
    """Fit four return laws from noisy quantiles: one figure and one table.

    Args:
        out: The folder for figure.png, figure.svg and data.csv.
        quantiles: How many quantiles each law is seen through, at least 4.
        noise: The standard deviation of each quantile's error; the paper's N(0, 0.25) is 0.5.
        trials: How many sets of random levels the error is averaged over.
        seed: The seed of all randomness.
    """
    _require(quantiles >= 4, f"--quantiles must be at least 4, the highest order; got {quantiles}")
    _require(0 <= noise < math.inf, f"--noise must be finite and not negative; got {noise}")
    _require(trials >= 1, f"--trials must be at least 1; got {trials}")
    _require(seed >= 0, f"--seed must not be negative; got {seed}")
    _require(not out.exists() or out.is_dir(), f"--out must be a folder, and {out} is a file")
    from qemrl import demo as fits

    results = fits.fit_laws(quantiles, noise, trials, seed)
    title = f"{quantiles} quantiles with noise {noise:g}; errors in standard deviations of the law"
    table = _table(title, "law", "estimator", ">R²", ">error here", ">RMSE fixed", ">RMSE random")
    for result in results:
        for row in result.rows:
            fit = "" if row.r_squared is None else f"{row.r_squared:.3f}"
            errors = (f"{row.error:+.4f}", f"{row.rmse_fixed:.4f}", f"{row.rmse_random:.4f}")
            last = row is result.rows[-1]
            table.add_row(row.law if row is result.rows[0] else "", row.estimator, fit, *errors, end_section=last)
    rich.print(table)
    print("error here: of the draw in the figure; RMSE: over all draws, with fixed and with random levels")
    for path in fits.write(results, noise, out):
        print(f"wrote {path}")


def bench_estimator(rounds: int = 60, json_file: Path | None = None) -> None:
    """Time QEM against the plain mean and against a forward pass of a small network.

    Args:
        rounds: How many turns each function gets; ratios are medians over the rounds.
        json_file: Write the figures to this file as well.
    """
    _require(rounds >= 1, f"--rounds must be at least 1; got {rounds}")
    from qemrl.bench import estimator

    report = estimator.run(rounds)
    columns = ("levels", "shape", "timed", "what", ">µs", "peer", ">its µs", ">ratio", ">limit")
    table = _table("Time per batch, compiled by JAX", *columns)
    colours = {True: "[green]", False: "[red]", None: ""}
    for line in report.comparisons:
        limit = "" if line.limit is None else f"{colours[line.holds]}{line.limit:.2f} {'✓' if line.holds else '✗'}"
        times = (f"{line.microseconds:.1f}", line.peer, f"{line.peer_microseconds:.1f}", f"{line.ratio:.3f}")
        table.add_row(line.levels, str(line.shape), line.timed, line.what, *times, limit)
    rich.print(table)
    layers = " → ".join(str(width) for width in estimator.NETWORK)
    print(f"network: {layers}, {report.comparisons[-1].shape[0]} inputs at once; {report.machine['device']}")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
        print(f"wrote {json_file}")


Tree = dict[str, Any]
COMMANDS: Tree = {"list": list_known, "demo": demo, "bench": {"estimator": bench_estimator}}
HELP = {"bench": "Measure what things cost."}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; usage errors exit with 2, an interrupt with 130."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments in (["--version"], ["-V"]):
        print(f"qemrl {qemrl.__version__}")
        return
    try:
        _check_command(arguments)
        _app(COMMANDS).cli(prog="qemrl", description=qemrl.__doc__, args=arguments)
    except BrokenPipeError:  # `qemrl list | head`: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (UsageError, OSError) as error:
        print(f"qemrl: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("qemrl: interrupted", file=sys.stderr)
        sys.exit(130)


def _app(tree: Tree) -> SubcommandApp:
    app = SubcommandApp()
    for name, target in tree.items():
        if isinstance(target, dict):
            app.command(_app(target), name=name, help=HELP[name])
        else:
            app.command(target, name=name)
    return app


def _check_command(arguments: Sequence[str]) -> None:
    """Name the nearest command when one is mistyped."""
    tree: Tree | Callable = COMMANDS
    path = "qemrl"
    for word in arguments:
        if not isinstance(tree, dict) or word.startswith("-"):
            return
        if word not in tree:
            near = difflib.get_close_matches(word, tree, n=1, cutoff=0.5)
            hint = f"did you mean `{path} {near[0]}`?" if near else f"try `{path} --help`"
            raise UsageError(f"`{path}` has no command `{word}`; {hint}")
        tree, path = tree[word], f"{path} {word}"


def _table(title: str, *columns: str) -> Table:
    """An empty table that fits into 80 characters; a column with `>` before its name is flush right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, collapse_padding=True)
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return table


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
