"""The command that searches settings: tune."""

import contextlib
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import tyro
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from qemrl.cli.console import UsageError, print_table, require, require_folder, require_text, table, usage
from qemrl.cli.runs import ENVIRONMENT, describe_defaults, format_help, read_options, take_preset
from qemrl.cli.sweep import EngineOptions
from qemrl.extras import require_extra

if TYPE_CHECKING:
    from qemrl.experiments.ranges import Range
    from qemrl.experiments.tune import TrialStatus, Tuner
    from qemrl.training.config import RunConfig

SHOWN_TRIALS = 10
"""How many of the best trials are printed at the end."""


@dataclass(frozen=True)
class TuneOptions:
    """What `tune` is asked for besides settings of `train`, and besides the engine."""

    out: Path | None = None
    """The folder: the study, the runs of all trials, best.toml, trials.csv and the figures."""

    trials: int = 50
    """How many trials there are in the end, those that are there already included."""

    num_seeds: int = 2
    """Seeds of each trial: 0, 1, …"""

    seed: int = 0
    """The seed that settings are drawn by."""

    ranges: Path | None = None
    """A TOML file with ranges by dotted name, as text or as lists of choices."""

    workers: int | None = None
    """How many trials run at a time; by default as many as there are cores for all of their seeds, at least one."""


AFTER = {
    "range.NAME": (
        "RANGE",
        "What the setting NAME may be: low:high, low:high:log, or choices a,b,c; wins over --ranges. Ranges that are "
        "given take the place of all default ones.",
    ),
}
"""Options that are read in another way."""


def tune(arguments: Annotated[Sequence[str], tyro.conf.arg(metavar="PRESET")] = ()) -> None:
    """Search the settings of a preset with Optuna: qemrl tune PRESET --env ID --trials N --out DIR.

    Settings are drawn by TPE, and trials that fall behind the median are pruned. The value of a trial is the mean over
    its seeds of the evaluations in the second half of the run. The same command goes on with a tuning that was
    interrupted. Every setting of `qemrl train` is an option, too, and is then the same in all trials.
    """
    from qemrl.agents.names import ACTOR_CRITICS
    from qemrl.agents.presets import PRESETS
    from qemrl.config.override import convert
    from qemrl.training.config import configure, default_steps

    words = [word for word in arguments if word not in ("-h", "--help")]
    asks_help = len(words) < len(arguments)
    preset = take_preset(words, list(PRESETS))
    if preset is None:
        require(asks_help, "name a preset first: qemrl tune PRESET --env ID --trials N --out DIR")
        print(_describe(None, "PRESET", None, {}))
        return
    with usage():
        given = read_options(words, _list_options())
        options, engine = _take(given, TuneOptions()), _take(given, EngineOptions())
        require_text("--ranges", options.ranges or Path())
        texts = {name.removeprefix("range."): given.pop(name) for name in list(given) if name.startswith("range.")}
        env = given.pop("env", None)
        require(env is not None or asks_help, "name an environment: --env CartPole-v1, for instance")
        require(env != "", "--env needs a value")
        known = env or ("Pendulum-v1" if preset in ACTOR_CRITICS else "CartPole-v1")
        steps = convert(given.pop("steps", default_steps(known)), int, "steps")
        config = configure(preset, known, steps, overrides=given)
        ranges = _find_ranges(config, given, options.ranges, texts)
    if asks_help:
        print(_describe(config, preset, env, ranges))
        return
    with usage():
        require_extra("tune", "`qemrl tune`")
    engine.check()
    for name in ("trials", "num_seeds", "workers"):
        value = getattr(options, name)
        require(value is None or value >= 1, f"--{name.replace('_', '-')} must be at least 1; got {value}")
    _run(config, {name: _read_fixed(config, name, given[name]) for name in given}, ranges, options, engine)


Options = TypeVar("Options", TuneOptions, EngineOptions)


def _take(given: dict[str, Any], defaults: Options) -> Options:
    """The options of one kind, taken out of all that are given."""
    from qemrl.config.override import convert

    hints = get_type_hints(type(defaults))
    names = [field.name for field in fields(defaults) if field.name in given]
    return replace(defaults, **{name: convert(given.pop(name), hints[name], name) for name in names})


def _read_fixed(config: "RunConfig", name: str, text: Any) -> Any:
    """A setting as best.toml is to have it: a number where it is one."""
    from qemrl.config.override import find_annotation
    from qemrl.experiments.ranges import read_plain

    try:
        annotation = find_annotation(config, name)
    except ValueError:  # `settings`, `no_…` and what the environment is made with are read by others
        return text
    return read_plain(text, annotation, name)


def _list_options() -> dict[str, tuple[str, str]]:
    """The options that are no settings: what they take, and what they are."""
    from qemrl.config.describe import list_settings

    own = [
        setting
        for kind in (TuneOptions(), EngineOptions())
        for group in list_settings(kind)
        for setting in group.settings
    ]
    texts = {
        each.name: (
            each.kind.removesuffix("|NONE"),
            each.doc + f" (default: {each.default})" * (each.default != "none"),
        )
        for each in own
    }
    return {**ENVIRONMENT, **texts, **AFTER}


def _find_ranges(
    config: "RunConfig", fixed: Mapping[str, Any], file: Path | None, texts: Mapping[str, str]
) -> "dict[str, Range]":
    """The ranges that are given, or the default ones of settings that are not given themselves."""
    from qemrl.experiments.ranges import default_ranges, read_ranges, read_ranges_file

    given = {**({} if file is None else read_ranges_file(file, config)), **read_ranges(texts, config)}
    if given:
        return given
    return {name: each for name, each in default_ranges(config).items() if name not in fixed}


def _describe(config: "RunConfig | None", preset: str, env: str | None, ranges: "Mapping[str, Range]") -> str:
    """The help of the command: of a preset, its ranges and settings as well."""
    about = " ".join((tune.__doc__ or "").partition("\n\n")[2].split())
    if config is None:
        about += " qemrl tune PRESET --env ID --help shows the ranges and all settings of a preset."
    else:
        searched = "; ".join(f"{name.replace('_', '-')} {each}" for name, each in ranges.items())
        about += f" Ranges here: {searched}. The defaults are {describe_defaults(env)}."
    line = f"qemrl tune {preset} --env {env or 'ID'} --trials N --out DIR [options]"
    return format_help(config, line, about, _list_options())


def _run(
    config: "RunConfig",
    fixed: Mapping[str, Any],
    ranges: "Mapping[str, Range]",
    options: TuneOptions,
    engine: EngineOptions,
) -> None:
    """Start a tuning in its folder, or go on with the one that is there."""
    if options.out is None:
        raise UsageError("name a folder for the tuning: --out DIR")
    require_folder(options.out)
    from qemrl.agents.presets import make_agent
    from qemrl.experiments.forecast import estimate_needs
    from qemrl.experiments.tune import Tuner, Tuning
    from qemrl.training.loops import describe_environment
    from qemrl.training.train import catch_stop_signals

    with usage():
        make_agent(config.agent, describe_environment(config))
        tuning = Tuning(config.preset, config.env, config.steps, options.num_seeds, fixed, ranges, options.seed)
        tuner = Tuner(tuning, options.out, options.trials)
        needs = partial(
            estimate_needs, cpus=engine.cpus_per_run, gpus=engine.gpus_per_run, memory_bytes=engine.memory_bytes
        )
        with (
            engine.start() as started,
            catch_stop_signals() as signals,
        ):
            workers = options.workers or max(1, started.cores // (options.num_seeds * engine.cpus_per_run))
            about = f"{options.trials} trials of {options.num_seeds} seeds, {workers} at a time"
            print(f"tuning {config.preset} on {config.env_name} in {options.out}: {about}", flush=True)
            with _watch(options.trials, list(ranges)) as watch:
                tuner.drive(started, needs, workers, watch, lambda: bool(signals))
    _conclude(tuner, signals)


@contextlib.contextmanager
def _watch(trials: int, names: Sequence[str]) -> "Iterator[Callable[[Sequence[TrialStatus]], None]]":
    """A live table in a terminal; elsewhere a line for each trial that starts or ends."""
    console = Console(highlight=False)
    if not console.is_terminal:
        yield TrialPrinter(trials)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(statuses: "Sequence[TrialStatus]") -> None:
            counts = Counter(status.state for status in statuses)
            said = ", ".join(f"{count} {state}" for state, count in counts.items())
            rows = _sort(statuses)[: max(5, console.height - 6)]
            live.update(trials_table(f"{len(statuses)} of {trials} trials: {said}", rows, names), refresh=True)

        yield show


def _sort(statuses: "Sequence[TrialStatus]") -> "list[TrialStatus]":
    """Those that are not over, then those that are finished, the best first."""
    going = ("running", "failed", "waiting")
    rest = [status for status in statuses if status.state not in going]
    from qemrl.experiments.tune import rank

    return [status for status in statuses if status.state in going] + rank(rest)


class TrialPrinter:
    """Prints a line for each trial that starts or ends."""

    def __init__(self, trials: int) -> None:
        self.trials = trials
        self.said: dict[int, str] = {}

    def __call__(self, statuses: "Sequence[TrialStatus]") -> None:
        """Say what is new; what had ended before is not."""
        for status in statuses:
            before, self.said[status.number] = self.said.get(status.number), status.state
            if before == status.state or (before is None and status.state in ("finished", "pruned", "waiting")):
                continue
            short = _shorten(status.params)
            value = "" if status.value is None else f"return {status.value:,.1f}"
            drawn = ", ".join(f"{short[name]} {_format(each)}" for name, each in status.params.items())
            parts = (f"trial {status.number} of {self.trials}: {status.state}", value, drawn, status.cause or "")
            print("  ".join(part for part in parts if part), flush=True)


def trials_table(title: str, statuses: "Sequence[TrialStatus]", names: Sequence[str]) -> Table:
    """A table of trials with their settings."""
    shown = table(title, ">trial", "state", ">done", ">return", *(f">{short}" for short in _shorten(names).values()))
    for status in statuses:
        value = "" if status.value is None else f"{status.value:,.1f}"
        drawn = (escape(_format(status.params[name])) for name in names)
        shown.add_row(str(status.number), status.state, f"{status.done:.0%}", value, *drawn)
    return shown


def _shorten(names: Iterable[str]) -> dict[str, str]:
    """The last words of dotted names, where they tell them apart."""
    names = list(names)
    last = [name.rpartition(".")[2] for name in names]
    return {name: short if last.count(short) == 1 else name for name, short in zip(names, last, strict=True)}


def _format(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "none" if value is None else str(value)


def _conclude(tuner: "Tuner", signals: list[int]) -> None:
    """Print the best trials, write the results, and end the process accordingly."""
    from qemrl.experiments.tune import rank, write_results

    statuses = tuner.statuses
    best = rank(statuses)[:SHOWN_TRIALS]
    if best:
        counts = Counter(status.state for status in statuses)
        title = f"The best of {len(statuses)} trials, {counts['finished']} finished and {counts['pruned']} pruned"
        print_table(trials_table(title, best, list(tuner.tuning.ranges)))
    for path in write_results(tuner):
        print(f"wrote {path}")
    failed = [status for status in statuses if status.state == "failed"]
    for status in failed:
        print(f"failed: trial {status.number}: {status.cause}", file=sys.stderr)
    if signals:
        print("qemrl: stopped, and saved; the same command goes on", file=sys.stderr)
        sys.exit(128 + signals[0])
    if failed:
        print(f"qemrl: {len(failed)} trials failed; the same command tries them again", file=sys.stderr)
        sys.exit(1)
    if not best:
        print("qemrl: all trials were pruned; their causes are in trials.csv", file=sys.stderr)
        sys.exit(1)
    file = shlex.quote(str(tuner.folder / "best.toml"))
    print(f"train with the best settings: qemrl train --config {file}, or: qemrl sweep {file} --out DIR")
