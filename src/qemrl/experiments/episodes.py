"""One evaluation episode, step by step, for those who want to look at it: figures and videos."""

from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
from jaxtyping import Float, UInt8

from qemrl.agents.agent import InspectableAgent, View
from qemrl.api import TrainableAgent
from qemrl.envs.gym.host_envs import HostEnvs
from qemrl.training.loops import evaluation_envs

Frame = UInt8[np.ndarray, "height width 3"]


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
        seed: Of the environment and of what is random in actor.
        render: Whether moments have a frame.

    Raises:
        CannotDrawError: At the first step, if there are to be frames and the environment gives none.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"the seed of an episode must lie in [0, 2³²), got {seed}")
    try:
        envs = evaluation_envs(agent.config, 1, render)
    except (gymnasium.error.Error, TypeError, ValueError) as error:
        if not render:
            raise
        raise CannotDrawError(f"{agent.config.env} gives no pictures: {error}") from error
    try:
        yield from _play(agent, envs, seed, render)
    finally:
        envs.close()


def _acting(agent: InspectableAgent) -> Callable[..., tuple[Any, Any, Any]]:
    def act(params: Any, actor: Any, view: View, step: Any, count: Any, key: Any) -> tuple[Any, Any, Any]:
        """The action, the actor state and Q."""
        actions, actor = agent.act(params, actor, view, step, jax.random.fold_in(key, count), True)
        return actions, actor, agent.q_values(params, view.observation)

    return act


def _play(agent: TrainableAgent, envs: HostEnvs, seed: int, render: bool) -> Iterator[Moment]:
    act, key = jax.jit(_acting(agent.agent)), jax.random.key(seed)
    params, actor = agent.params, agent.agent.init_actor(1)
    observation, mask = envs.reset(seed)
    count, ended = 0, False
    first = np.ones(1, bool)
    while not ended:
        view = View(observation, mask, first)
        actions, actor, q = act(params, actor, view, np.int32(agent.steps), np.int32(count), key)
        frame = _picture(envs) if render else None
        result = envs.step(np.asarray(actions))
        action = np.asarray(actions)[0]
        chosen = int(action) if envs.spec.box is None else action.reshape(-1)
        yield Moment(observation[0].copy(), np.asarray(q)[0], chosen, float(result.reward[0]), frame)
        observation, mask, first = result.observation, result.mask, result.restarted
        ended = bool(result.ended[0])
        count += 1


def _picture(envs: HostEnvs) -> Frame:
    try:
        picture = envs.render()
    except (gymnasium.error.Error, ImportError, NotImplementedError, ValueError) as error:
        raise CannotDrawError(f"{envs.spec.id} gives no pictures: {error}") from error
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise CannotDrawError(f"{envs.spec.id} gives pictures of shape {picture.shape} and dtype {picture.dtype}")
    return picture
