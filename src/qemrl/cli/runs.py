"""The commands that train an agent, resume it, try it out and hand it on: train, resume, evaluate, export."""

import argparse
import ast
import contextlib
import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from qemrl.cli.console import (
    CheckpointName,
    Steps,
    print_table,
    require,
    require_count,
    require_folder,
    require_text,
    show_status,
    table,
    write_json,
)

if TYPE_CHECKING:
    from qemrl.training.config import RunConfig
    from qemrl.training.loops import Loop
    from qemrl.training.run_directory import RunDirectory
    from qemrl.training.wandb import WandbCallback

LARGEST_EPISODES = 100_000
"""They are played side by side, each in an environment of its own."""

USAGE = """usage: qemrl train PRESET --env ID [options]

Train an agent. Every setting is an option; which there are, and their defaults, depends on preset and environment:
qemrl train PRESET --env ID --help shows them all. The most important ones:

  --env ID           an environment of Gymnasium (CartPole-v1, Hopper-v5, ALE/Pong-v5, module:Id-v0), or one in JAX
                     (minatar/breakout, jax/cartpole, jax/pendulum)
  --env-kwargs.X V   what the environment is made with: X=V
  --settings NAME    settings of a paper or a repository in the place of the default: a name of `qemrl list`
  --steps N          how many steps each seed learns for
  --seed S           the first seed
  --num-seeds K      how many seeds: S, S + 1, …
  --num-envs E       environments side by side, for each seed
  --out DIR          the folder of the run; by default runs/PRESET/ENV/seed_S
  --config FILE      preset, environment and settings from a TOML file: a grid of one run, such as the best.toml of
                     `qemrl tune`; options beside it win
  --exploration NAME how value agents explore: epsilon-greedy, dltv, count and others, which --help names
  --estimator NAME   how quantiles become Q, or a risk measure in its place: a name of `qemrl list`
  --protocol NAME    how an Atari game is played: paper, sb3, machado and others
  --tensorboard      write event files for TensorBoard, too
  --wandb PROJECT    track the run in a project of Weights & Biases, too
"""


def train(arguments: Annotated[Sequence[str], tyro.conf.arg(metavar="PRESET")] = ()) -> None:
    """Train an agent: qemrl train PRESET --env ID --steps N."""
    from qemrl.agents.names import ACTOR_CRITICS
    from qemrl.agents.presets import PRESETS
    from qemrl.config.override import convert
    from qemrl.training.config import configure, default_steps

    words = [word for word in arguments if word not in ("-h", "--help")]
    asks_help = len(words) < len(arguments)
    preset = take_preset(words, list(PRESETS))
    options = read_options(words, NOT_SETTINGS)
    if "config" in options:
        preset, options = _read_file(options.pop("config"), preset, options)
    if preset is None:
        require(asks_help, f"name a preset first: qemrl train PRESET --env ID; presets: {', '.join(PRESETS)}")
        print(USAGE)
        shown = table("Presets", "name", "what it is")
        for name, known in PRESETS.items():
            shown.add_row(name, known.summary)
        print_table(shown)
        return
    env = options.pop("env", None)
    out, tensorboard = options.pop("out", None), convert(options.pop("tensorboard", False), bool, "tensorboard")
    wandb = _take_wandb(options)
    require(env != "" and out != "", "--env and --out need a value")
    known = env or ("Pendulum-v1" if preset in ACTOR_CRITICS else "CartPole-v1")
    config = configure(preset, known, default_steps(known), overrides=options)
    require(env is not None or asks_help, "name an environment: --env CartPole-v1, for instance")
    if asks_help:
        about = f"Train {preset}; the defaults are {describe_defaults(env)}."
        print(format_help(config, f"qemrl train {preset} --env {env or 'ID'} [options]", about, NOT_SETTINGS))
    else:
        _start(config, None if out is None else Path(out), tensorboard, wandb)


def resume(
    directory: Positional[Path],
    steps: Steps | None = None,
    tensorboard: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    wandb: Annotated[str | None, tyro.conf.arg(metavar="PROJECT")] = None,
    wandb_entity: str | None = None,
    wandb_group: str | None = None,
    wandb_tags: tuple[str, ...] = (),
    wandb_offline: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    allow_imports: bool = False,
) -> None:
    """Resume a run from its last checkpoint; where it was tracked before, it is tracked again.

    Args:
        directory: The folder of the run.
        steps: Go on to this number of steps, further than planned.
        tensorboard: Write event files for TensorBoard, too.
        wandb: Track the run in this project of Weights & Biases, too.
        wandb_entity: Whose project it is.
        wandb_group: What W&B groups runs by.
        wandb_tags: What W&B filters runs by.
        wandb_offline: Keep what W&B gets on disk, for `wandb sync`.
        allow_imports: Import the module that the run names for its environment (module:id), if it names one.
    """
    from qemrl.training.config import read_config, require_complete
    from qemrl.training.loops import check_imports, make_loop
    from qemrl.training.run_directory import RunDirectory
    from qemrl.training.train import store_config

    run = RunDirectory(directory)
    config = read_config(run.config)
    require_complete(config)
    planned = config.steps if steps is None or (run.done and steps < config.steps) else steps
    require(
        planned >= config.steps,
        f"--steps goes on further than the {config.steps:,} steps that are planned; got {planned:,}",
    )
    extends, config = planned > config.steps, replace(config, steps=planned)
    check_imports(config, allow_imports)
    _require_tensorboard(tensorboard)
    tracker = _make_tracker(wandb, wandb_entity, wandb_group, wandb_tags, wandb_offline)
    loop = make_loop(config) if extends or not run.done else None
    if extends:  # what is wrong with the run is said before anything of it is changed
        store_config(run, config)
    _run(config, run, tensorboard, tracker, loop)


def evaluate(
    directory: Positional[Path],
    episodes: int = 20,
    seed_of_run: int | None = None,
    checkpoint: CheckpointName = "last",
    video: Path | None = None,
    json: bool = False,
    out: Path | None = None,
    allow_imports: bool = False,
) -> None:
    """Play episodes with the agent of a run's last checkpoint, or of another; the run itself is left as it is.

    Args:
        directory: The folder of the run.
        episodes: How many, for each seed.
        seed_of_run: Only this one of the run's seeds.
        checkpoint: `last`, `best` by evaluation, or the step of one that is there.
        video: Record an episode of the first seed to this file, .mp4 or .gif.
        json: Print one JSON object and nothing else.
        out: Write the JSON object to this file as well.
        allow_imports: Import the module that the run names for its environment (module:id), if it names one.
    """
    require_count("--episodes", episodes, LARGEST_EPISODES)
    from qemrl import api
    from qemrl.training.config import read_config
    from qemrl.training.run_directory import RunDirectory
    from qemrl.training.video import require_suffix

    if video is not None:
        require_suffix(video)
    config = read_config(RunDirectory(directory).config)
    chosen = config.seeds if seed_of_run is None else (seed_of_run,)
    agents = [api.load(directory, seed, allow_imports=allow_imports, checkpoint=checkpoint) for seed in chosen]
    results = [agent.evaluate(episodes) for agent in agents]
    filmed = video is not None and agents[0].record_video(video)
    data: dict[str, Any] = {
        "run": str(directory),
        "preset": config.preset,
        "env": config.env_name,
        "step": agents[0].steps,
        "episodes": episodes,
        "seeds": [
            {
                "seed": seed,
                **_summary(result.returns),
                "returns": result.returns.tolist(),
                "lengths": result.lengths.tolist(),
                **({"cut": result.cut} if result.cut else {}),
            }
            for seed, result in zip(chosen, results, strict=True)
        ],
    }
    if video is not None:
        data["video"] = str(video) if filmed else None
    _report(data, json, filmed, video)
    if out is not None:
        with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
            write_json(data, out)


def export(
    directory: Positional[Path],
    out: Path,
    formats: Annotated[tuple[Literal["stablehlo", "onnx"], ...], tyro.conf.arg(name="format")] = ("stablehlo",),
    levels: Literal["midpoints", "input"] = "midpoints",
    episodes: int = 20,
    seed_of_run: int | None = None,
    checkpoint: CheckpointName = "last",
    allow_imports: bool = False,
) -> None:
    """Write the agent of a run's checkpoint as a program that needs no qemrl, with a model card.

    The program takes a batch of observations and returns the greedy actions and the return distributions. It is run
    beside the agent before anything is written, and the largest difference is printed.

    Args:
        directory: The folder of the run.
        out: The folder for policy.stablehlo, policy.onnx, policy.json, README.md, figure.png and figure.svg.
        formats: What to write: a program for `jax.export`, one for ONNX runtimes (needs the extra `onnx`), or both.
        levels: The levels that an agent such as IQN draws in training are fixed midpoints, or an input of the program.
        episodes: How many episodes the model card's mean reward is of.
        seed_of_run: Which of the run's seeds; by default its first.
        checkpoint: The checkpoint: `last`, `best` by evaluation, or the step of one that is there.
        allow_imports: Import the module that the run names for its environment (module:id), if it names one.
    """
    require_count("--episodes", episodes, LARGEST_EPISODES)
    require_folder(out)
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures only: no window, and no complaint that there is none
    from qemrl import api
    from qemrl.export import export_agent

    with show_status("exporting"):
        agent = api.load(directory, seed_of_run, checkpoint=checkpoint, allow_imports=allow_imports)
        written = export_agent(agent, out, formats, levels, episodes)
    title = f"{agent.config.preset} on {agent.config.env_name} after {agent.steps:,} steps"
    shown = table(title, "format", ">largest difference from the agent")
    for name, difference in written.differences.items():
        shown.add_row(name, f"{difference:.1e}")
    print_table(shown)
    numbers = _summary(written.evaluation.returns)
    print(f"mean reward of {episodes} episodes: {numbers['mean']:,.2f} ± {numbers['std']:,.2f}")
    for path in written.paths:
        print(f"wrote {path}")


def _report(data: dict[str, Any], as_json: bool, filmed: bool, video: Path | None) -> None:
    if as_json:
        import json

        print(json.dumps(data))
        return
    title = f"{data['preset']} on {data['env']} after {data['step']:,} steps, {data['episodes']} episodes"
    shown = table(title, ">seed", ">mean", ">± std", ">min", ">max")
    for each in data["seeds"]:
        shown.add_row(str(each["seed"]), *(f"{each[name]:,.2f}" for name in ("mean", "std", "min", "max")))
    print_table(shown)
    cut = sum(each.get("cut", 0) for each in data["seeds"])
    if cut:
        print(f"episodes that had not ended and were cut: {cut}")
    if filmed:
        print(f"wrote {video}")


def _summary(returns: Any) -> dict[str, float]:
    return {name: float(getattr(returns, name)()) for name in ("mean", "std", "min", "max")}


def _read_file(file: str, preset: str | None, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Preset and options with what a grid's file says about them; what is given wins."""
    from qemrl.experiments.grid import read_grid

    require(file != "", "--config needs a file")
    require_text("--config", Path(file))
    grid = read_grid(file, allow_imports=True)  # of its environments one is chosen, which is asked about below
    for found, what, option in ((grid.presets, preset, "a preset"), (grid.envs, options.get("env"), "--env")):
        require(what is not None or len(found) == 1, f"{file} has {', '.join(found)}; say which with {option}")
    arm, env = preset or grid.presets[0], options.get("env") or grid.envs[0]
    trusted = "env" in options or ":" not in env
    require(trusted, f"{env} of {file} would import a module, which can do anything; if you trust it, say --env {env}")
    first, count = grid.seed_list[0], len(grid.seed_list)
    consecutive = grid.seed_list == tuple(range(first, first + count))
    require(
        consecutive or {"seed", "num_seeds"} <= set(options),
        f"{file} has the seeds {grid.seed_list}, and a run has consecutive ones; give --seed and --num-seeds",
    )
    switched = {_switch(name) for name in options}
    settings = {name: value for name, value in grid.settings(arm, env).items() if _switch(name) not in switched}
    run = {"env": env, "steps": grid.steps, "seed": first, "num_seeds": count}
    return arm.partition("+")[0], {**run, **settings, **options}


def _switch(name: str) -> str:
    """The setting that an option sets: `no_double` is `double`."""
    above, dot, last = name.rpartition(".")
    return f"{above}{dot}{last.removeprefix('no_')}"


def take_preset(words: list[str], presets: list[str]) -> str | None:
    """The preset, taken out of the words: the first of them, or one that is called so."""
    if words and not words[0].startswith("-"):
        return words.pop(0)
    found = [word for word in words if word in presets]
    if found:
        words.remove(found[0])
        return found[0]
    return None


ENVIRONMENT = {
    "env": ("ID", "The environment."),
    "env_kwargs.NAME": ("VALUE", "What the environment is made with; text that looks like a number is one."),
    "settings": ("NAME", "A named set of settings in the place of the environment's own: a name of `qemrl list`."),
}
"""Options that say which environment it is, and whose settings it has."""

NOT_SETTINGS = {
    **ENVIRONMENT,
    "out": ("DIR", "The folder of the run; by default runs/PRESET/ENV/seed_S."),
    "config": ("FILE", "A TOML file with a grid of one run; options beside it win."),
    "tensorboard": ("", "Write event files for TensorBoard, too."),
    "wandb": ("PROJECT", "Track the run in this project of Weights & Biases, too."),
    "wandb_entity": ("NAME", "Whose project it is."),
    "wandb_group": ("NAME", "What W&B groups runs by."),
    "wandb_tags": ("[NAME ...]", "What W&B filters runs by."),
    "wandb_offline": ("", "Keep what W&B gets on disk, for `wandb sync`."),
}
"""Options of `train` that are no settings of the run: what they take, and what they are."""


def read_options(words: Sequence[str], own: Collection[str]) -> dict[str, Any]:
    """The text behind each option, by the option's name; of one that is there twice the last.

    What an environment is made with has no type that is known here: it is what it looks like.

    Args:
        words: The command line.
        own: The options of the command that are no settings: one that is almost so called is a mistake.
    """
    from qemrl.config.suggestions import nearest

    options: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word.removeprefix("--").partition("=")
            name = name.replace("-", "_")
            require(all(name.split(".")), f"`{word}` has no name; options are --NAME VALUE, as --help shows them")
            typo = None if name in own or "." in name else nearest(name, own, cutoff=0.8)
            require(typo is None, f"there is no option --{name}; did you mean --{(typo or '').replace('_', '-')}?")
            options[name] = value
        else:
            require(bool(name), f"`{word}` stands alone; options begin with --")
            options[name] = f"{options[name]} {word}".strip()
    return {name: _read_literal(value) if name.startswith("env_kwargs.") else value for name, value in options.items()}


def _read_literal(text: str) -> Any:
    """What a word looks like: a number, a truth value, None, a list, or quoted text; else the word itself."""
    words = {"": True, "true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        return ast.literal_eval(text)
    return text


def _take_wandb(options: dict[str, Any]) -> "WandbCallback | None":
    """Weights & Biases as the options have it, which are taken out."""
    from qemrl.config.override import convert

    names = ("wandb", "wandb_entity", "wandb_group")
    project, entity, group = (options.pop(name, None) for name in names)
    tags = tuple(options.pop("wandb_tags", "").split())
    return _make_tracker(
        project, entity, group, tags, convert(options.pop("wandb_offline", False), bool, "wandb_offline")
    )


def _make_tracker(
    project: str | None, entity: str | None, group: str | None, tags: tuple[str, ...], offline: bool
) -> "WandbCallback | None":
    if project is None:
        require(not (entity or group or tags or offline), "options of Weights & Biases need a project: --wandb PROJECT")
        return None
    require(project != "", "--wandb needs a value: the name of a project")
    from qemrl.training.wandb import WandbCallback

    return WandbCallback(project, entity, group, tags, "offline" if offline else None)


def describe_defaults(env: str | None) -> str:
    """Which defaults a help shows."""
    return f"those for {env}" if env else "those of small tasks; give --env for others"


def format_help(config: "RunConfig | None", usage_line: str, about: str, own: Mapping[str, tuple[str, str]]) -> str:
    """The options of a command, then every setting of a run with its type, its default and what its class says.

    Args:
        config: The run; None leaves settings out.
        usage_line: The command.
        about: What it does.
        own: Its options that are no settings: what they take, and what they are.
    """
    from qemrl.config.describe import list_settings

    shown = argparse.ArgumentParser(prog="qemrl", usage=usage_line, description=about, add_help=False)
    for name, (kind, text) in own.items():
        takes: dict[str, Any] = {"metavar": kind} if kind else {"action": "store_true"}
        shown.add_argument(f"--{name.replace('_', '-')}", help=text.replace("%", "%%"), **takes)
    for group in () if config is None else list_settings(config):
        section = shown.add_argument_group(f"{group.title} options", group.doc or None)
        for setting in group.settings:
            if setting.name in own:
                continue
            option = f"--{setting.name.replace('_', '-')}"
            text = f"{setting.doc} (default: {setting.default})".strip().replace("%", "%%")
            if setting.kind == "BOOL":
                above, _, last = option.removeprefix("--").rpartition(".")
                off = f"--{above}.no-{last}" if above else f"--no-{last}"
                section.add_argument(option, off, action="store_true", help=text)
            else:
                section.add_argument(option, metavar=setting.kind, help=text)
    return shown.format_help()


def _start(config: "RunConfig", out: Path | None, tensorboard: bool, wandb: "WandbCallback | None") -> None:
    """Start a run in its folder, or resume it if it is there."""
    from qemrl.training.config import create_run
    from qemrl.training.loops import make_loop

    folder = (
        out or Path("runs") / config.preset / config.env.replace("/", "_").replace(":", "_") / f"seed_{config.seed}"
    )
    _require_tensorboard(tensorboard)
    # What is wrong with a new run is said before a folder is made.
    loop = None if (folder / "config.json").exists() else make_loop(config)
    try:
        run = create_run(folder, config, {"command": shlex.join(["qemrl", *sys.argv[1:]])})
    except BaseException:
        if loop is not None:
            loop.close()
        raise
    print(f"run directory: {folder}", flush=True)
    _run(config, run, tensorboard, wandb, loop)


def _require_tensorboard(asked: bool) -> None:
    from qemrl.extras import require_extra

    if asked:
        require_extra("tensorboard", "--tensorboard")


def _run(
    config: "RunConfig",
    run: "RunDirectory",
    tensorboard: bool,
    wandb: "WandbCallback | None",
    loop: "Loop | None" = None,
) -> None:
    """Bring a run to its end, with a bar, and say how it went."""
    from qemrl.training.callbacks import show_progress
    from qemrl.training.trackers import make_trackers
    from qemrl.training.train import Stopped, train

    again = f"qemrl resume {shlex.quote(str(run.path))}"
    if run.done:
        print(f"{run.path} is finished: {config.steps:,} steps are done. `{again} --steps N` goes on to N steps.")
        return
    try:
        with contextlib.ExitStack() as stack:
            if loop is not None:
                stack.callback(loop.close)
            train(config, run, [*make_trackers(run, tensorboard, wandb), *show_progress()], loop)
    except Stopped as stopped:
        print(f"qemrl: stopped at step {stopped.step:,}, and saved; resume: {again}", file=sys.stderr)
        sys.exit(128 + stopped.signal_number)
    except KeyboardInterrupt:
        print(f"qemrl: stopped without saving; go on from the last checkpoint with: {again}", file=sys.stderr)
        sys.exit(130)
    print(f"finished: {run.path}; try it out with: qemrl evaluate {shlex.quote(str(run.path))}")
