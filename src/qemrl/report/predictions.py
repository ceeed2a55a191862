"""What saved agents predict at the start of an episode, beside what they got in their last evaluation."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
from jaxtyping import Float

from qemrl import api
from qemrl.experiments.episodes import distribution_kind
from qemrl.experiments.records import LARGEST_RETURN
from qemrl.experiments.runs import Cell, RunRecord
from qemrl.training.checkpoint import CheckpointError
from qemrl.training.run_directory import RunDirectory

EPISODE_SEED = 0
"""Of the episode whose first observation all agents see."""


@dataclass(frozen=True)
class ActionPrediction:
    """The return distribution that an agent predicts for one action, as a distribution function."""

    name: str
    q: float
    """As the agent itself estimates it."""

    returns: Float[np.ndarray, " n"]
    shares: Float[np.ndarray, " n"]
    """The probability of a return up to each of these."""


@dataclass(frozen=True)
class AgentPrediction:
    """What one saved agent expects, and what it got."""

    arm: str
    env: str
    seed: int
    step: int
    """The step of the checkpoint."""

    kind: str
    """`quantiles`, `categorical`, or `scalar` (an agent that estimates Q only)."""

    discount: float
    actions: tuple[ActionPrediction, ...]
    best: int
    """The action that the agent prefers."""

    evaluated_at: int | None
    evaluation: Float[np.ndarray, " episodes"]
    """The sorted returns of the last evaluation; empty if its episodes were not kept."""


def find_saved_agents(cells: Iterable[Cell]) -> list[RunRecord]:
    """For each algorithm and task the run with a checkpoint that has the lowest seed."""
    chosen = []
    for cell in cells:
        saved = [run for run in cell.runs if any((run.path / "checkpoints").glob("step_*"))]
        chosen += sorted(saved, key=lambda run: run.config.seed)[:1]
    return chosen


def predict_returns(run: RunRecord, allow_imports: bool = False) -> AgentPrediction:
    """What the agent of a run's first seed expects at the first observation of an episode.

    Args:
        run: The run.
        allow_imports: Whether a module that its environment names may be imported.

    Raises:
        ValueError: The agent cannot be loaded, or its environment cannot be made.
    """
    try:
        agent = api.load(run.path, run.config.seed, allow_imports=allow_imports)
        envs = agent.evaluation_envs()
    except (CheckpointError, ImportError, OSError, gymnasium.error.Error) as error:
        raise ValueError(str(error)) from error
    try:
        observation = envs.reset(EPISODE_SEED)[0][0]
    finally:
        envs.close()
    q = np.asarray(agent.q(observation), np.float64)
    evaluated_at, evaluation = _read_last_evaluation(run.path, run.config.seed)
    actions = tuple(_predict_actions(agent, observation, q))
    if not all(np.isfinite([action.q, *action.returns, *action.shares]).all() for action in actions):
        raise ValueError("it predicts what is not finite")
    return AgentPrediction(
        arm=run.arm,
        env=run.config.env_name,
        seed=run.config.seed,
        step=agent.steps,
        kind=distribution_kind(agent),
        discount=float(run.config.agent.discount),
        actions=actions,
        best=int(q.argmax()),
        evaluated_at=evaluated_at,
        evaluation=evaluation,
    )


def _predict_actions(
    agent: api.TrainableAgent, observation: np.ndarray, q: Float[np.ndarray, " actions"]
) -> list[ActionPrediction]:
    names = [f"action {agent.spec.action_start + number}" for number in range(len(q))]
    names = names if agent.spec.box is None else ["the policy's action"]
    if distribution_kind(agent) == "scalar":
        return [
            ActionPrediction(name, float(mean), np.array([mean]), np.ones(1))
            for name, mean in zip(names, q, strict=True)
        ]
    dist = agent.predict_distribution(observation)
    values = np.asarray(dist.values, np.float64)
    # Quantiles may cross; the distribution that they describe has them in order.
    order = np.argsort(values, axis=-1, kind="stable")
    values = np.take_along_axis(values, order, -1)
    if dist.probs is None:
        shares = np.broadcast_to((np.arange(values.shape[-1]) + 0.5) / values.shape[-1], values.shape)
    else:
        probs = np.broadcast_to(np.asarray(dist.probs, np.float64), values.shape)
        shares = np.take_along_axis(probs, order, -1).cumsum(-1) / probs.sum(-1, keepdims=True)
    return [ActionPrediction(*parts) for parts in zip(names, q.tolist(), values, shares, strict=True)]


def _read_last_evaluation(path: Path, seed: int) -> tuple[int | None, Float[np.ndarray, " episodes"]]:
    files = sorted((path / "evaluations").glob(f"seed_{seed}_step_*.json"))
    found = RunDirectory(path).read_evaluation(files[-1].stem) if files else None
    if found is None:
        return None, np.zeros(0)
    try:
        step, returns = int(found["step"]), np.sort(np.array(found["returns"], np.float64))
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{files[-1]} holds no evaluation: {error!r}") from error
    if returns.ndim != 1 or not len(returns) or not (np.abs(returns) <= LARGEST_RETURN).all():
        raise ValueError(f"{files[-1]} holds no evaluation: its returns are no list of numbers")
    return step, returns
