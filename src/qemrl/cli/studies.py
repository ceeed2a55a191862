"""The commands that compare runs or look at what they learned: `compare`, `demo`, `show` and `report`."""

import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich
import tyro
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional

from qemrl.cli.console import (
    CheckpointName,
    Steps,
    UsageError,
    print_table,
    require,
    require_folder,
    require_seed,
    show_status,
    table,
)
from qemrl.cli.runs import ENVIRONMENT, format_help, read_options

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from qemrl.experiments.compare import Comparison
    from qemrl.experiments.statistics import Interval
    from qemrl.plotting.distributions import Episode
    from qemrl.report.content import Content
    from qemrl.training.config import RunConfig

DEMO_PRESETS = ("qr-dqn", "qem-dqn")
DEMO_ENV = "minatar/breakout"
DEMO_SEEDS = 2


COMPARE_OPTIONS = {
    "out": ("DIR", "The folder for the runs, figure.png, figure.svg, data.csv and comparison.json."),
    **ENVIRONMENT,
    "env": ("ID", "The environment; may be left out if all runs are there."),
    "steps": ("N", "How many steps each seed learns for; may be left out if all runs are there."),
    "num_seeds": ("K", "How many seeds each preset gets, all of them at once; 3 for new runs."),
    "seed": ("S", "The first seed; 0 for new runs."),
    "allow_imports": ("", "Import the module that a run names for its environment (module:id), if it names one."),
}
"""Options of `compare` besides the settings of `train`."""


def compare(arguments: Annotated[Sequence[str], tyro.conf.arg(metavar="PRESETS")] = ()) -> None:
    """Train presets on an environment and compare them: a table with intervals, a figure of the learning curves.

    Each preset has a run directory of its name in the folder. What is there already is not trained again; what was
    interrupted is resumed. The differences are against the first preset, over pairs of seeds.
    """
    words = [word for word in arguments if word not in ("-h", "--help")]
    if len(words) < len(arguments):
        print(_describe_compare())
        return
    presets = _take_presets(words)
    from qemrl.config.override import convert
    from qemrl.experiments.compare import ComparisonRequest, plan
    from qemrl.training.config import configure

    options = read_options(words, COMPARE_OPTIONS)
    out, env = options.pop("out", ""), options.pop("env", None)
    require(out != "", "name a folder for the comparison: --out DIR")
    require(env != "", "--env needs a value")
    require_folder(Path(out))
    counts = {name: options.pop(name, None) for name in ("steps", "seed", "num_seeds")}
    numbers = {name: convert(text, int | None, name) for name, text in counts.items()}
    allowed = convert(options.pop("allow_imports", False), bool, "allow_imports")
    asked = ComparisonRequest(presets, env, **numbers, overrides=options, allow_imports=allowed)
    configs = plan(asked, Path(out))
    for config in configs:
        if config.agent != configure(config.preset, config.env, config.steps, overrides=options).agent:
            print(f"note: {Path(out, config.preset)} has settings of its own, see its config.json")
    _complete_and_report(configs, Path(out))


def _take_presets(words: list[str]) -> tuple[str, ...]:
    """The presets, taken out of the words: those before the first option, or else all that are called so."""
    from qemrl.agents.names import SUMMARIES

    count = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    found = words[:count] or [word for word in words if word in SUMMARIES]
    words[:] = words[count:] if count else [word for word in words if word not in SUMMARIES]
    return tuple(found)


def _describe_compare() -> str:
    """The help of `compare`."""
    about = (
        f"{inspect.cleandoc(compare.__doc__ or '')} Every other setting of `qemrl train` is an option, too, and holds "
    )
    about += "for all presets, which must have it: qemrl train PRESET --env ID --help shows them."
    return format_help(None, "qemrl compare PRESET PRESET … --env ID --steps N --out DIR", about, COMPARE_OPTIONS)


def demo(out: Path = Path("demo"), steps: Steps = 100_000, seed: int = 0) -> None:
    """Train QR-DQN and QEM-DQN on MinAtar's Breakout, two seeds each: a figure of the learning curves and a table.

    It takes 3 to 5 minutes on two cores. It can be interrupted and resumes when it is called again; when it is
    finished, it draws what is there. Exploration fades over the first quarter, sooner than in a run of full length.

    Args:
        out: The folder for the two runs, figure.png, figure.svg, data.csv and comparison.json.
        steps: How many steps each seed learns for.
        seed: The first of the two seeds.
    """
    require_folder(out)
    from qemrl.experiments.compare import ComparisonRequest, plan

    configs = plan(ComparisonRequest(DEMO_PRESETS, DEMO_ENV, steps, seed, DEMO_SEEDS), out, explore_over=0.25)
    _complete_and_report(configs, out)


def show(
    run: Positional[Path],
    episode_seed: int = 0,
    seed_of_run: int | None = None,
    checkpoint: CheckpointName = "last",
    moments: Annotated[int, tyro.conf.arg(metavar="N")] = 5,
    out: Path | None = None,
    allow_imports: bool = False,
) -> None:
    """Play an episode and draw the return distributions of each action along it.

    With quantiles, the figure has the QEM fit, Q by the mean and by QEM, R² and the crossing rate. DQN has no return
    distribution, and its figure only Q over the episode.

    Args:
        run: The run directory of a trained agent.
        episode_seed: The seed of the episode.
        seed_of_run: Which of the run's seeds; by default its first.
        checkpoint: `last`, `best` by evaluation, or the step of one that is there.
        moments: At how many moments of the episode the distributions are drawn.
        out: The folder for figure.png, figure.svg, data.csv and distributions.csv; by default `show` in the run's own.
        allow_imports: Import the module that the run names for its environment (module:id), if it names one.
    """
    require_seed("--episode-seed", episode_seed)
    require(1 <= moments <= 12, f"--moments must be between 1 and 12; got {moments}")
    folder = run / "show" if out is None else out
    require_folder(folder)
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures only: no window, and no complaint that there is none
    from qemrl import api
    from qemrl.experiments.episodes import watch_episode, write_episode

    with show_status("playing an episode"):
        agent = api.load(run, seed_of_run, allow_imports=allow_imports, checkpoint=checkpoint)
        episode = watch_episode(agent, episode_seed, moments)
    if episode.note:
        print(f"note: the figure has no frames: {episode.note}")
    _print_moments(episode)
    for path in write_episode(episode, folder):
        print(f"wrote {path}")


def report(
    directory: Positional[Path],
    out: Path,
    figures: Path | None = None,
    pdf: Path | None = None,
    agents: bool = True,
    seed: int = 0,
    allow_imports: bool = False,
) -> None:
    """Make one HTML page about all runs below a folder: curves, scores with intervals, settings, saved agents.

    The page needs neither a server nor the network. Runs may be those of `sweep`, `compare` or `train`, finished or
    not; results of `reproduce` below the folder become the paper's ledger. The same runs give the same bytes. What is
    printed is how far each algorithm ends above the one that is nearest to it.

    Args:
        directory: The folder, or a single run directory.
        out: The page, FILE.html; one that is there is replaced.
        figures: A folder for the figures as PNG, SVG and PDF.
        pdf: A file for all figures as one PDF.
        agents: Load one saved agent of each algorithm and task, and show the return distributions that it predicts;
            this takes some seconds for each.
        seed: The seed of the bootstrap.
        allow_imports: Import the modules that runs name for their environments (module:id), to show their agents.
    """
    require(out.suffix in (".html", ".htm"), f"--out must be a file that ends in .html; got {out}")
    require(not out.is_dir(), f"--out must be a file, and {out} is a folder")
    require(figures is None or not figures.exists() or figures.is_dir(), f"--figures must be a folder; got {figures}")
    require(
        pdf is None or (pdf.suffix == ".pdf" and not pdf.is_dir()), f"--pdf must be a file that ends in .pdf; got {pdf}"
    )
    require_seed("--seed", seed)
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # environments of saved agents are made without a window
    from qemrl.report.content import gather
    from qemrl.report.figures import write_figures, write_pdf
    from qemrl.report.page import make_page
    from qemrl.training.files import write_atomic

    with show_status("reading runs") as status:
        content = gather(directory, agents, seed, lambda what: status.update(f"{escape(what)} …"), allow_imports)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(out, make_page(content))
            paths = [out]
            if figures is not None:
                paths += write_figures(content, figures)
            if pdf is not None:
                write_pdf(content, pdf)
                paths.append(pdf)
        except OSError as error:
            raise UsageError(f"{error}; choose another place with --out, --figures and --pdf") from error
    for note in list_omissions(content):
        print(f"note: {note}")
    if content.results.differences:
        print_table(differences_table(content))
    for path in paths:
        print(f"wrote {path}")


def list_omissions(content: "Content") -> Iterator[str]:
    """What a report leaves out, a sentence each."""
    for each in content.collection.unreadable:
        yield f"{each.name} is left out: {each.reason}"
    for name, loss in content.collection.losses:
        yield f"{name}: {loss}"
    for agent in content.not_loaded:
        yield f"no saved agent is shown of {agent}"


def differences_table(content: "Content") -> Table:
    """How far algorithms end above those before them that are nearest in settings, by task if there are few."""
    from qemrl.report.markup import format_ends, format_number

    results = content.results
    title = "Last evaluations minus those of the nearest algorithm, paired by seed"
    shown = table(title, "algorithm", "minus", "task", ">pairs", ">difference", "95% interval", "")
    for env in (*content.few_envs, None):
        for arm, (interval, pairs) in results.gains(content.nearest, env).items():
            against = content.nearest[arm]
            scale = 1.0 if env is None else max(abs(results.final[one, env].value) for one in (arm, against))
            names = (arm, against, "all, normalized" if env is None else env)
            words = interval.verdict if interval.excludes(0.0) else ""
            rest = (str(pairs), format_number(interval.value, scale), format_ends(interval, scale), words)
            shown.add_row(*map(escape, (*names, *rest)))
        shown.add_section()
    return shown


def _print_moments(episode: "Episode") -> None:
    from qemrl.plotting.distributions import format_q

    if episode.kind == "scalar":
        print(episode.title)
        print("A scalar agent has no return distribution: the figure shows Q over the episode only.")
        return
    quantiles = episode.kind == "quantiles"
    # Of actions the best is chosen, of critics the least counts.
    curve, extreme = ("action", "best") if episode.actions.ndim == 1 else ("critic", "least")
    columns = (">Q QEM", ">R²", ">crossing") if quantiles else ()
    last = (f"{extreme} by mean", f"{extreme} by QEM") if quantiles else (f"{extreme} by mean",)
    shown = table(episode.title, ">moment", ">step", f">{curve}", ">Q mean", *columns, *last)
    for number, prediction in enumerate(episode.predictions, 1):
        at = prediction.chosen
        row = [str(number), str(prediction.step), _curve_number(episode, at), format_q(prediction.q_mean[at])]
        if prediction.q_qem is not None and prediction.r_squared is not None and prediction.crossing_rate is not None:
            row += [
                format_q(prediction.q_qem[at]),
                f"{prediction.r_squared[at]:.3f}",
                f"{prediction.crossing_rate[at]:.1%}",
            ]
        for q in (prediction.q_mean, prediction.q_qem):
            if q is not None:
                row.append(_curve_number(episode, int(q.argmax() if extreme == "best" else q.argmin())))
        shown.add_row(*row)
    print_table(shown)


def _curve_number(episode: "Episode", curve: int) -> str:
    """The number of a curve as its name has it."""
    return episode.curves[curve].rpartition(" ")[2]


def _complete_and_report(configs: "Sequence[RunConfig]", out: Path) -> None:
    from qemrl.experiments import compare as comparing
    from qemrl.training.callbacks import show_progress
    from qemrl.training.train import Stopped, train

    directories = []
    for config in configs:
        path = out / config.preset
        directory = comparing.prepare(config, path)
        if directory.done:
            print(f"{config.preset}: finished already, in {path}")
        else:
            try:
                train(config, directory, show_progress())
            except Stopped as stop:
                print(f"\nqemrl: {stop}; the state is saved, and the same command resumes it", file=sys.stderr)
                sys.exit(128 + stop.signal_number)
        directories.append(directory)
    comparison = comparing.compare(directories)
    for result in comparison.results:
        for loss in result.run.losses:
            print(f"note: {result.curve.label}: {loss}")
    _print_results(comparison)
    for path in comparing.write_comparison(comparison, out):
        print(f"wrote {path}")


def _print_results(comparison: "Comparison") -> None:
    count = len(comparison.results[0].curve.seeds)
    interval = " with 95% intervals" if count > 1 else ""
    title = f"{comparison.env}, {comparison.steps:,} steps, {count} seed{'s' * (count > 1)}{interval}"
    results = table(title, "preset", "return at the end", "over the curve", ">steps/s")
    for result in comparison.results:
        speed = "" if result.run.steps_per_second is None else f"{result.run.steps_per_second:,.0f}"
        results.add_row(result.curve.label, *_cells(result.final, result.average), speed)
    print_table(results)
    against = comparison.results[0].curve.label
    differences = table(f"Minus {against}, by pairs of seeds", "preset", ">pairs", "at the end", "over the curve")
    for difference in comparison.differences:
        pairs = str(len(difference.seeds))
        differences.add_row(difference.preset, pairs, *_cells(difference.final, difference.average))
    print_table(differences)
    for difference in comparison.differences:
        verdict = difference.final.verdict
        color = {"higher": "[green]", "lower": "[red]"}.get(verdict, "")
        rich.print(f"{difference.preset} against {against}, at the end: {color}{verdict}")
    print("over the curve: the area under the evaluation curve, divided by its length; steps/s: of all seeds together")


def _cells(*intervals: "Interval") -> list[str]:
    return [escape(str(interval)) for interval in intervals]
