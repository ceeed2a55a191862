"""Probe environments with continuous actions: each so small that its answer is known, and each fails for one reason.

Run in order, they tell what is wrong with an agent: the loss (c1), the input (c2), the discount and the bootstrap (c3),
the way from the value to the policy (c4), that from the observation to the action and the scale of actions (c5),
truncation taken for termination (c6), and the learned distribution of returns (c7). Observations are one float32 in
[−1, 1], actions one float32 in a box. Where the action does not matter, the environment is that of `probes`.

The values are those of rewards alone: an agent that is also paid for entropy must take its own part away first.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.special import ndtri

from qemrl.envs.jax.env import JaxEnv, Outcome
from qemrl.envs.jax.probes import (
    LIMIT,
    REWARD_MEAN,
    REWARD_STD,
    ProbeState,
    constant_reward,
    delayed_reward,
    draw,
    from_sign,
    from_zero,
    observed_reward,
    outcome,
    random_reward,
    truncation,
)
from qemrl.types import ActionBox, EnvSpec

AIM = 0.5
"""The best action of probe c4."""

LEFT, RIGHT = -2.0, 4.0
"""The box of probe c5: neither symmetric nor of length two, so that an agent that does not scale actions misses."""

MIDDLE, HALF = 1.0, 3.0
"""The middle of that box and half its length."""

SLOPE = 1.5
"""How far from the middle the best actions of probe c5 are, on the side that the observation says."""


class BoxProbe(NamedTuple):
    """A probe with continuous actions and its answer."""

    make: Callable[[], JaxEnv]
    shows: str
    """What an agent that solves it has right."""

    observations: tuple[float, ...]
    """All that can be observed, each once."""

    best_actions: tuple[float, ...] | None
    """The best action of each observation; None where any action is as good."""

    values: Callable[[float], tuple[float, ...]]
    """From the discount to the optimal Q of each observation and a best action there."""

    mean_return: float
    """The undiscounted return of the best policy, on average."""

    quantiles: Callable[[Float[np.ndarray, " n"]], Float[np.ndarray, " n"]] | None = None
    """From levels to the quantiles of the return, where its distribution is what is probed."""


def any_action(name: str, make: Callable[[], JaxEnv]) -> JaxEnv:
    """A probe with discrete actions that ignores them, with actions in (−1, 1) instead.

    Args:
        name: The last part of the new id.
        make: What makes the probe; its steps must not look at the action.
    """
    return replace(make(), spec=_spec(name, -1.0, 1.0))


def aimed_action() -> JaxEnv:
    """One step, observation 0, actions a in (−1, 1), reward 1 − (a − 0.5)²: the best action is 0.5, and Q = 1 there.

    Elsewhere Q is the reward. The slope of Q in the action is all that leads a policy to it.
    """

    def step(state: ProbeState, action: Float[Array, "1"], key: PRNGKeyArray) -> Outcome:
        del key
        return outcome(state, state.observation, 1 - (action[0] - AIM) ** 2, ends=True)

    return JaxEnv(_spec("c4", -1.0, 1.0), from_zero, step, draw)


def observed_aim() -> JaxEnv:
    """One step, observation o = −1 or 1 by chance, actions a in (−2, 4), reward 1 − ((a − 1 − 1.5 o) / 3)².

    The best actions are −0.5 at −1 and 2.5 at 1, halfway from the middle of the box to its ends, and Q = 1 there.
    """

    def step(state: ProbeState, action: Float[Array, "1"], key: PRNGKeyArray) -> Outcome:
        del key
        miss = (action[0] - (MIDDLE + SLOPE * state.observation[0])) / HALF
        return outcome(state, state.observation, 1 - miss**2, ends=True)

    return JaxEnv(_spec("c5", LEFT, RIGHT), from_sign, step, draw)


BOX_PROBES: dict[str, BoxProbe] = {
    "c1": BoxProbe(
        partial(any_action, "c1", constant_reward), "a constant is learned", (0.0,), None, lambda _: (1.0,), 1.0
    ),
    "c2": BoxProbe(
        partial(any_action, "c2", observed_reward),
        "observations are read",
        (-1.0, 1.0),
        None,
        lambda _: (-1.0, 1.0),
        0.0,
    ),
    "c3": BoxProbe(
        partial(any_action, "c3", delayed_reward),
        "values are discounted and bootstrapped",
        (0.0, 1.0),
        None,
        lambda d: (d, 1.0),
        1.0,
    ),
    "c4": BoxProbe(aimed_action, "the policy climbs the value", (0.0,), (AIM,), lambda _: (1.0,), 1.0),
    "c5": BoxProbe(
        observed_aim,
        "actions depend on observations and are scaled to the box",
        (-1.0, 1.0),
        (MIDDLE - SLOPE, MIDDLE + SLOPE),
        lambda _: (1.0, 1.0),
        1.0,
    ),
    "c6": BoxProbe(
        partial(any_action, "c6", truncation),
        "truncation bootstraps",
        (0.0,),
        None,
        lambda d: (1 / (1 - d),),
        float(LIMIT),
    ),
    "c7": BoxProbe(
        partial(any_action, "c7", random_reward),
        "the distribution of the return is learned",
        (0.0,),
        None,
        lambda _: (REWARD_MEAN,),
        REWARD_MEAN,
        lambda levels: REWARD_MEAN + REWARD_STD * ndtri(levels),
    ),
}
"""The probes by the last part of their id: `probe/c1` to `probe/c7`."""


def _spec(name: str, low: float, high: float) -> EnvSpec:
    box = ActionBox((1,), (low,), (high,))
    return EnvSpec(f"probe/{name}", (1,), "float32", 0, observation_low=(-1.0,), observation_high=(1.0,), box=box)
