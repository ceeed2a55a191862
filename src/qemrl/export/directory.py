"""The folder of an exported agent.

policy.stablehlo, policy.onnx    the programs
policy.json                      what they take and return, and where they come from
README.md                        the model card
figure.png, figure.svg           its figure
"""

import contextlib
import itertools
import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped
from matplotlib.figure import Figure

import qemrl
from qemrl.api import Evaluation, TrainableAgent
from qemrl.experiments.episodes import play_episode, watch_episode
from qemrl.experiments.runs import build_curve, read_run
from qemrl.export.card import write_card
from qemrl.export.program import (
    FORMATS,
    TOLERANCE,
    ExportError,
    Format,
    LevelSource,
    Policy,
    make_policy,
    measure_difference,
)
from qemrl.extras import require_extra
from qemrl.plotting import style
from qemrl.plotting.curves import draw_curves
from qemrl.plotting.distributions import draw_episode
from qemrl.training.files import write_atomic

STATES = 32
"""On how many observations of an episode programs are compared with their agent."""


class Exported(NamedTuple):
    """What was written."""

    paths: tuple[Path, ...]
    differences: dict[Format, float]
    """How far each program is from the agent: at most 1e-5 of the largest number that it gives."""

    evaluation: Evaluation


def export_agent(
    agent: TrainableAgent,
    out: str | Path,
    formats: Format | Sequence[Format] = "stablehlo",
    levels: LevelSource = "midpoints",
    episodes: int = 20,
) -> Exported:
    """The agent's greedy policy as programs in a folder, with a model card.

    Every program is run beside the agent before anything is written. What an earlier export has left is replaced.

    Args:
        agent: Of `qemrl.make` or `qemrl.load`.
        out: The folder.
        formats: `stablehlo`, which `jax.export` loads, `onnx`, or both.
        levels: Where the levels come from that an agent such as IQN draws in training: `midpoints`, or an `input`.
        episodes: How many evaluation episodes the card's mean reward is of.

    Raises:
        ExportError: A program cannot be written, or does not do what the agent does.
        ValueError: An argument does not fit the agent, or a package is missing.
    """
    chosen: Sequence[Format] = [formats] if isinstance(formats, str) else formats
    if not chosen or any(name not in FORMATS for name in chosen):
        raise ValueError(f"formats are {' and '.join(FORMATS)}; got {', '.join(map(str, chosen)) or 'none'}")
    if "onnx" in chosen:
        require_extra("onnx", "the format onnx")
    policy, observations = make_policy(agent, levels), _observe(agent)
    programs: dict[Format, bytes] = {name: FORMATS[name].write(policy) for name in dict.fromkeys(chosen)}
    differences: dict[Format, float] = {
        name: _check(agent, policy, name, program, observations) for name, program in programs.items()
    }
    evaluation = agent.evaluate(episodes)
    figure, caption = _draw(agent)
    card = write_card(agent, policy, list(programs), evaluation, caption)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    files = {FORMATS[name].file: program for name, program in programs.items()}
    files |= {"policy.json": json.dumps(_describe(agent, policy, programs), indent=2) + "\n", "README.md": card}
    for name, content in files.items():
        write_atomic(folder / name, content)
    for other in FORMATS.values():
        if other.file not in files:
            (folder / other.file).unlink(missing_ok=True)
    return Exported(
        (*(folder / name for name in files), *style.save(figure, folder, "figure")), differences, evaluation
    )


def _observe(agent: TrainableAgent) -> Shaped[np.ndarray, "batch ..."]:
    with contextlib.closing(play_episode(agent, 0, render=False)) as moments:
        return np.stack([moment.observation for moment in itertools.islice(moments, STATES)])


def _check(agent: TrainableAgent, policy: Policy, name: Format, program: bytes, observations: np.ndarray) -> float:
    difference = measure_difference(agent, policy, FORMATS[name].load(program, policy), observations)
    if not difference <= TOLERANCE:
        raise ExportError(
            f"the {name} program is {difference:.1e} away from its agent, more than {TOLERANCE:g}; nothing was written"
        )
    return difference


def _draw(agent: TrainableAgent) -> tuple[Figure, str]:
    """The learning curve of the agent's run, where there is one, else an episode; and what the figure shows."""
    config = agent.config
    if agent.run is not None:
        evaluations = read_run(agent.run, agent.run.name).evaluations[config.seed]
        curve = build_curve(config.preset, config.env, {config.seed: evaluations})
        if curve is not None:
            return draw_curves([curve]), "Learning curve"
    return draw_episode(watch_episode(agent, 0)), "An episode and the return distributions along it"


def _describe(agent: TrainableAgent, policy: Policy, programs: dict[Format, bytes]) -> dict[str, Any]:
    config, spec, box = agent.config, agent.spec, agent.spec.box
    packages = {FORMATS[name].package for name in programs} | {"jax"}
    return {
        "programs": {name: FORMATS[name].file for name in programs},
        "inputs": [each._asdict() for each in policy.inputs],
        "outputs": [each._asdict() for each in policy.outputs],
        "levels": None if policy.levels is None else policy.levels.tolist(),
        "probs": None if policy.probs is None else policy.probs.tolist(),
        "actions": {"num_actions": spec.num_actions, "start": spec.action_start}
        if box is None
        else {"box": box._asdict()},
        "preset": config.preset,
        "env": config.env,
        "seed": config.seed,
        "step": agent.steps,
        "versions": {"qemrl": qemrl.__version__} | {name: metadata.version(name) for name in sorted(packages)},
    }
