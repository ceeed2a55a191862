"""Evaluation episodes, step by step, and what the agent expects along them, for figures and videos."""

import contextlib
import csv
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import gymnasium
import jax
import numpy as np
from jaxtyping import Float

from qemrl.agents.actor_critic_config import ActorCriticConfig
from qemrl.agents.agent import InspectableAgent, View
from qemrl.api import TrainableAgent
from qemrl.distributional.atoms import Categorical
from qemrl.envs.gym.host_envs import HostEnvs
from qemrl.estimators import QEM, EmpiricalMean, crossing_rate, r_squared
from qemrl.plotting import style
from qemrl.plotting.distributions import Episode, Frame, StepPrediction, draw_episode

MOST_CANDIDATES = 64
"""For how many steps the observation is kept; an Atari episode would otherwise fill the memory."""


class CannotDrawError(ValueError):
    """The environment gives no pictures."""


class Moment(NamedTuple):
    """A step of an episode."""

    observation: np.ndarray
    """What the action was chosen from."""

    q: Float[np.ndarray, " actions"]
    """The estimates of Q without randomness, of continuous actions one.

    Acting may have drawn levels or noise, or explored (ε of evaluation).
    """

    action: int | Float[np.ndarray, " components"]
    """A number, or the components of a continuous action."""

    reward: float
    """What the action earned, not clipped."""

    frame: Frame | None
    """A picture of where the action was chosen; None without `render`."""


def play_episode(agent: TrainableAgent, seed: int, render: bool) -> Generator[Moment, None, None]:
    """The steps of one episode with the exploration of evaluation; the same agent and seed give the same episode.

    Args:
        agent: The agent, which does not learn from it.
        seed: Of the environment and of what is random in acting.
        render: Whether moments have a frame.

    Raises:
        CannotDrawError: At the first step, if there are to be frames and the environment gives none.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"the seed of an episode must lie in [0, 2³²), got {seed}")
    try:
        envs = agent.evaluation_envs(1, render)
    except (gymnasium.error.Error, TypeError, ValueError) as error:
        if not render:
            raise
        raise CannotDrawError(f"{agent.config.env_name} gives no pictures: {error}") from error
    try:
        yield from _play(agent, envs, seed, render)
    finally:
        envs.close()


def _make_act(agent: InspectableAgent) -> Callable[..., tuple[Any, Any, Any]]:
    def act(params: Any, actor: Any, view: View, step: Any, count: Any, key: Any) -> tuple[Any, Any, Any]:
        """The action, the actor state and Q."""
        actions, actor = agent.act(params, actor, view, step, jax.random.fold_in(key, count), True)
        return actions, actor, agent.q_values(params, view.observation)

    return act


def _play(agent: TrainableAgent, envs: HostEnvs, seed: int, render: bool) -> Iterator[Moment]:
    act, key = jax.jit(_make_act(agent.agent)), jax.random.key(seed)
    params, actor = agent.params, agent.agent.init_actor(1)
    observation, mask = envs.reset(seed)
    count, ended = 0, False
    first = np.ones(1, bool)
    while not ended and count < agent.config.evaluation_max_steps:
        view = View(observation, mask, first)
        actions, actor, q = act(params, actor, view, np.int32(agent.steps), np.int32(count), key)
        frame = _render(envs) if render else None
        result = envs.step(np.asarray(actions))
        action = np.asarray(actions)[0]
        chosen = int(action) if envs.spec.box is None else action.reshape(-1)
        yield Moment(observation[0].copy(), np.asarray(q)[0], chosen, float(result.reward[0]), frame)
        observation, mask, first = result.observation, result.mask, result.restarted
        ended = bool(result.ended[0])
        count += 1


def _render(envs: HostEnvs) -> Frame:
    try:
        picture = envs.render()
    except (gymnasium.error.Error, ImportError, NotImplementedError, ValueError) as error:
        raise CannotDrawError(f"{envs.spec.id} gives no pictures: {error}") from error
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise CannotDrawError(f"{envs.spec.id} gives pictures of shape {picture.shape} and dtype {picture.dtype}")
    return picture


def watch_episode(agent: TrainableAgent, seed: int, predictions: int = 5) -> Episode:
    """One evaluation episode, with this many predictions at equally spaced steps, the first and the last included."""
    if predictions < 1:
        raise ValueError(f"there must be at least one prediction, got {predictions}")
    note = ""
    try:
        log, candidates = _collect(play_episode(agent, seed, render=True), max(MOST_CANDIDATES, 2 * predictions))
    except CannotDrawError as error:
        note = str(error)
        log, candidates = _collect(play_episode(agent, seed, render=False), max(MOST_CANDIDATES, 2 * predictions))
    wanted = np.linspace(0, len(log) - 1, min(predictions, len(log)))
    chosen = sorted({min(candidates, key=lambda step: abs(step - place)) for place in wanted.tolist()})
    found = [_predict_step(agent, step, candidates[step]) for step in chosen]
    rewards = np.array([reward for _, _, reward in log], np.float64)
    config = agent.config
    title = f"{config.preset} on {config.env_name}, seed {config.seed}: an episode of {len(log)} steps, "
    return Episode(
        title + f"return {rewards.sum():g}",
        distribution_kind(agent),
        _name_curves(agent),
        np.array([q for q, _, _ in log], np.float64),
        np.array([action for _, action, _ in log]),
        rewards,
        found,
        note,
    )


def _name_curves(agent: TrainableAgent) -> tuple[str, ...]:
    config = agent.config.agent
    if isinstance(config, ActorCriticConfig):
        return tuple(f"critic {number + 1}" for number in range(config.ensemble.size))
    return tuple(f"action {number}" for number in range(agent.spec.num_actions))


def distribution_kind(agent: TrainableAgent) -> str:
    """What the agent's return distributions are: `quantiles`, other `values`, `categorical`, or `scalar` for none."""
    representation = agent.config.agent.representation
    if isinstance(representation, Categorical) and representation.content == "distribution":
        return "categorical"
    return {"mean": "scalar", "distribution": "values", "quantiles": "quantiles"}[representation.content]


def _collect(
    moments: Generator[Moment, None, None], most: int
) -> tuple[list[tuple[np.ndarray, Any, float]], dict[int, Moment]]:
    """Q, action and reward of each step, and the moments of at most `most` steps, equally far apart, and the last."""
    log: list[tuple[np.ndarray, Any, float]] = []
    kept: dict[int, Moment] = {}
    every, last = 1, None
    with contextlib.closing(moments) as steps:
        for step, moment in enumerate(steps):
            log.append((moment.q, moment.action, moment.reward))
            if step % every == 0:
                kept[step] = moment
            if len(kept) == most:
                every *= 2
                kept = {at: other for at, other in kept.items() if at % every == 0}
            last = moment
    assert last is not None  # an episode has a step
    return log, kept | {len(log) - 1: last}


def _predict_step(agent: TrainableAgent, step: int, moment: Moment) -> StepPrediction:
    dist = agent.predict_distribution(moment.observation)
    curves, shape = len(_name_curves(agent)), dist.values.shape  # critics are pooled there
    values, levels, probs = (
        None if each is None else np.broadcast_to(np.asarray(each, np.float64), shape).reshape(curves, -1)
        for each in dist
    )
    assert values is not None
    assert levels is not None
    chosen = moment.action if isinstance(moment.action, int) else int(values.mean(-1).argmin())
    mean, count = np.asarray(EmpiricalMean().mean(values, levels, probs)), values.shape[-1]
    kind = distribution_kind(agent)
    if kind != "quantiles" or count < 2:
        shares = None if probs is None or kind != "categorical" else probs / probs.sum(-1, keepdims=True)
        return StepPrediction(step, chosen, moment.frame, levels, values, shares, mean, None, None, None, None)
    own = agent.config.agent.estimator
    qem = cast("QEM", own).with_fixed_variance if own.requires == "quantiles" else QEM(order=min(4, count))
    with np.errstate(divide="ignore", invalid="ignore"):  # all quantiles alike: R² is then undefined
        share = np.asarray(r_squared(qem, values, levels, probs))
    crossing = np.asarray(crossing_rate(values, levels))
    fit, estimate = np.asarray(qem.fit(values, levels, probs)), np.asarray(qem.mean(values, levels, probs))
    return StepPrediction(step, chosen, moment.frame, levels, values, None, mean, estimate, fit, share, crossing)


def write_episode(episode: Episode, folder: Path) -> list[Path]:
    """Save the figure, the steps (data.csv) and the distributions (distributions.csv); the paths are returned."""
    paths = style.save(draw_episode(episode), folder, "figure")
    steps = folder / "data.csv"
    columns = [f"q_{action}" for action in range(episode.q.shape[1])] if episode.actions.ndim == 1 else ["q"]
    components = episode.actions.reshape(len(episode.actions), -1).tolist()
    named = ["action"] if episode.actions.ndim == 1 else [f"action_{number}" for number in range(len(components[0]))]
    rows = enumerate(zip(components, episode.rewards.tolist(), episode.q.tolist(), strict=True))
    _write_csv(steps, ["step", *named, "reward", *columns], [[at, *a, r, *q] for at, (a, r, q) in rows])
    if episode.kind == "scalar":
        return [*paths, steps]
    table = folder / "distributions.csv"
    curve = "action" if episode.actions.ndim == 1 else "critic"
    header = ["step", "chosen", curve, "level", "value", "prob", "qem_fit"]
    _write_csv(table, header, [row for prediction in episode.predictions for row in _list_values(prediction)])
    return [*paths, steps, table]


def _list_values(prediction: StepPrediction) -> Iterator[list]:
    count = prediction.values.shape[-1]
    levels = np.broadcast_to(prediction.levels, prediction.values.shape)
    probs = np.full(prediction.values.shape, 1 / count) if prediction.probs is None else prediction.probs
    for action, index in np.ndindex(prediction.values.shape):
        fit = "" if prediction.fit is None else float(prediction.fit[action, index])
        numbers = [float(array[action, index]) for array in (levels, prediction.values, probs)]
        yield [prediction.step, prediction.chosen, action, *numbers, fit]


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
