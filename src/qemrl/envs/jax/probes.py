"""Probe environments: each so small that its answer is known, and each fails for one reason.

Run in order, they tell what is wrong with an agent: the loss (1), the input (2), the discount and the bootstrap (3),
the choice of actions (4), both together (5), truncation taken for termination (6), the learned distribution of returns
(7), and actions that are not allowed (8). Observations are one float32 in [−1, 1].

With continuous actions, one float32 in a box, c1, c2, c3, c6 and c7 are the probes of these numbers, in which the
action does not matter; c4 probes the way from the value to the policy, c5 that from the observation to the action, and
the scale of actions. The values are those of rewards alone: an agent that is also paid for entropy must take its own
part away first.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8
from scipy.special import ndtri

from qemrl.envs.jax.env import Action, JaxEnv, Outcome, limit_time
from qemrl.types import ActionBox, EnvSpec

REWARD_MEAN, REWARD_STD = 1.0, 2.0
"""The distribution of the reward in probe 7, a normal one."""

LIMIT = 5
"""The number of steps after which probe 6 truncates."""

FORBIDDEN = 2
"""The action that the last state of probe 8 does not allow."""

AIM = 0.5
"""The best action of probe c4."""

LEFT, RIGHT = -2.0, 4.0
"""The box of probe c5: neither symmetric nor of length two, so that an agent that does not scale actions misses."""

MIDDLE, HALF = 1.0, 3.0
"""The middle of that box and half its length."""

SLOPE = 1.5
"""How far from the middle the best actions of probe c5 are, on the side that the observation says."""


class ProbeState(NamedTuple):
    """What a probe shows, and how far it is."""

    observation: Float[Array, "1"]
    steps: Int[Array, ""]


class Probe(NamedTuple):
    """A probe and its answer."""

    make: Callable[[], JaxEnv]
    observations: tuple[float, ...]
    """All that can be observed, each once."""

    values: Callable[[float], tuple[tuple[float, ...], ...]]
    """From the discount to the optimal Q of each observation and action; NaN for an action that is not allowed.

    Of continuous actions there is one, the best.
    """

    mean_return: float
    """The undiscounted return of the best policy, on average."""

    quantiles: Callable[[Float[np.ndarray, " n"]], Float[np.ndarray, " n"]] | None = None
    """From levels to the quantiles of the return, where its distribution is what is probed."""

    best_actions: tuple[float, ...] | None = None
    """The best continuous action of each observation; None where any action is as good."""


def constant_reward() -> JaxEnv:
    """One action, one step, observation 0, reward 1: Q = 1."""

    def step(state: ProbeState, action: Action, key: PRNGKeyArray) -> Outcome:
        del action, key
        return _outcome(state, state.observation, 1.0, ends=True)

    return _probe("1", 1, _from_zero, step)


def observed_reward() -> JaxEnv:
    """One action, one step, observation −1 or 1 by chance, reward equal to it: Q(−1) = −1, Q(1) = 1."""

    def step(state: ProbeState, action: Action, key: PRNGKeyArray) -> Outcome:
        del action, key
        return _outcome(state, state.observation, state.observation[0], ends=True)

    return _probe("2", 1, _from_sign, step)


def delayed_reward() -> JaxEnv:
    """One action, two steps, observation 0 and then 1, reward 1 at the end: Q(0) = discount, Q(1) = 1."""

    def step(state: ProbeState, action: Action, key: PRNGKeyArray) -> Outcome:
        del action, key
        last = state.steps == 1
        return _outcome(state, jnp.ones(1, jnp.float32), last.astype(jnp.float32), ends=last)

    return _probe("3", 1, _from_zero, step)


def two_actions() -> JaxEnv:
    """Two actions, one step, observation 0, reward −1 for action 0 and 1 for action 1: Q = (−1, 1)."""

    def step(state: ProbeState, action: Int[Array, ""], key: PRNGKeyArray) -> Outcome:
        del key
        return _outcome(state, state.observation, _sign(action == 1), ends=True)

    return _probe("4", 2, _from_zero, step)


def matching_action() -> JaxEnv:
    """Two actions, one step, observation −1 or 1 by chance, reward 1 if the action is 0 at −1 or 1 at 1, else −1.

    Q(−1) = (1, −1), Q(1) = (−1, 1).
    """

    def step(state: ProbeState, action: Int[Array, ""], key: PRNGKeyArray) -> Outcome:
        del key
        return _outcome(state, state.observation, _sign((action == 1) == (state.observation[0] > 0)), ends=True)

    return _probe("5", 2, _from_sign, step)


def truncation() -> JaxEnv:
    """One action, observation 0, reward 1 at each step, truncated after 5 and never terminated: Q = 1 / (1 − discount).

    An agent that takes the truncation for a termination finds less than 5 for the only state there is.
    """

    def step(state: ProbeState, action: Action, key: PRNGKeyArray) -> Outcome:
        del action, key
        return _outcome(state, state.observation, 1.0, ends=False)

    return limit_time(_probe("6", 1, _from_zero, step), LIMIT)


def random_reward() -> JaxEnv:
    """One action, one step, observation 0, a normal reward of mean 1 and standard deviation 2.

    Q = 1, and the quantile of the return at level τ is 1 + 2 Φ⁻¹(τ).
    """

    def step(state: ProbeState, action: Action, key: PRNGKeyArray) -> Outcome:
        del action
        reward = REWARD_MEAN + REWARD_STD * jax.random.normal(key, (), jnp.float32)
        return _outcome(state, state.observation, reward, ends=True)

    return _probe("7", 1, _from_zero, step)


def forbidden_action() -> JaxEnv:
    """Three actions, two steps; the last state forbids action 2, which would give the largest reward.

    The first state, observation −1, allows all and gives 0, 0 and 1. The last, observation 1, gives −1 and −2 for
    actions 0 and 1; action 2 would give 10. So Q(−1) = (−d, −d, 1 − d) with the discount d, and Q(1) = (−1, −2, ·). An
    agent that acts on the forbidden action returns 10 or more; one that never acts on it but bootstraps from it takes
    a value that nothing was learned for instead of −1, and misses Q(−1).
    """

    def reset(key: PRNGKeyArray) -> tuple[ProbeState, Float[Array, "1"]]:
        del key
        return _start(-jnp.ones(1, jnp.float32))

    def step(state: ProbeState, action: Int[Array, ""], key: PRNGKeyArray) -> Outcome:
        del key
        rewards = jnp.array([[0, 0, 1], [-1, -2, 10]], jnp.float32)
        last = state.steps == 1
        return _outcome(state, jnp.ones(1, jnp.float32), rewards[last.astype(jnp.int32), action], ends=last)

    def mask(state: ProbeState) -> Bool[Array, "3"]:
        return (state.observation < 0) | (jnp.arange(3) != FORBIDDEN)

    return _probe("8", 3, reset, step, mask)


PROBES: dict[str, Probe] = {
    "1": Probe(constant_reward, (0.0,), lambda _: ((1.0,),), 1.0),
    "2": Probe(observed_reward, (-1.0, 1.0), lambda _: ((-1.0,), (1.0,)), 0.0),
    "3": Probe(delayed_reward, (0.0, 1.0), lambda d: ((d,), (1.0,)), 1.0),
    "4": Probe(two_actions, (0.0,), lambda _: ((-1.0, 1.0),), 1.0),
    "5": Probe(matching_action, (-1.0, 1.0), lambda _: ((1.0, -1.0), (-1.0, 1.0)), 1.0),
    "6": Probe(truncation, (0.0,), lambda d: ((1 / (1 - d),),), float(LIMIT)),
    "7": Probe(
        random_reward,
        (0.0,),
        lambda _: ((REWARD_MEAN,),),
        REWARD_MEAN,
        lambda levels: REWARD_MEAN + REWARD_STD * ndtri(levels),
    ),
    "8": Probe(forbidden_action, (-1.0, 1.0), lambda d: ((-d, -d, 1 - d), (-1.0, -2.0, float("nan"))), 0.0),
}
"""The probes by the last part of their id: `probe/1` to `probe/8`."""


def _probe(
    name: str,
    actions: int,
    reset: Callable[[PRNGKeyArray], tuple[ProbeState, Array]],
    step: Callable[[ProbeState, Int[Array, ""], PRNGKeyArray], Outcome],
    mask: Callable[[ProbeState], Bool[Array, " actions"]] | None = None,
) -> JaxEnv:
    spec = EnvSpec(
        f"probe/{name}", (1,), "float32", actions, mask is not None, observation_low=(-1.0,), observation_high=(1.0,)
    )
    return JaxEnv(spec, reset, step, _draw, mask or (lambda _: None))


def _start(observation: Float[Array, "1"]) -> tuple[ProbeState, Float[Array, "1"]]:
    return ProbeState(observation, jnp.int32(0)), observation


def _from_zero(key: PRNGKeyArray) -> tuple[ProbeState, Float[Array, "1"]]:
    """The start of an episode with observation 0."""
    del key
    return _start(jnp.zeros(1, jnp.float32))


def _from_sign(key: PRNGKeyArray) -> tuple[ProbeState, Float[Array, "1"]]:
    """The start of an episode with observation −1 or 1, each as likely as the other."""
    return _start(_sign(jax.random.bernoulli(key, shape=(1,))))


def _sign(positive: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.where(positive, jnp.float32(1), jnp.float32(-1))


def _outcome(
    state: ProbeState, observation: Float[Array, "1"], reward: float | Float[Array, ""], ends: bool | Bool[Array, ""]
) -> Outcome:
    """What a step led to that shows this observation, gives this reward and terminates the episode or not."""
    following = ProbeState(observation, state.steps + jnp.int32(1))
    return Outcome(following, observation, jnp.asarray(reward, jnp.float32), jnp.asarray(ends), jnp.bool_(False))


def _draw(state: ProbeState) -> UInt8[np.ndarray, "height width 3"]:
    """What is observed as a shade of gray, from black for −1 to white for 1."""
    shade = round(255 * (float(state.observation[0]) + 1) / 2)
    return np.full((200, 200, 3), shade, np.uint8)


def aimed_action() -> JaxEnv:
    """One step, observation 0, actions a in (−1, 1), reward 1 − (a − 0.5)²: the best action is 0.5, and Q = 1 there.

    Elsewhere Q is the reward. The slope of Q in the action is all that leads a policy to it.
    """

    def step(state: ProbeState, action: Float[Array, "1"], key: PRNGKeyArray) -> Outcome:
        del key
        return _outcome(state, state.observation, 1 - (action[0] - AIM) ** 2, ends=True)

    return JaxEnv(_box_spec("c4", -1.0, 1.0), _from_zero, step, _draw)


def observed_aim() -> JaxEnv:
    """One step, observation o = −1 or 1 by chance, actions a in (−2, 4), reward 1 − ((a − 1 − 1.5 o) / 3)².

    The best actions are −0.5 at −1 and 2.5 at 1, halfway from the middle of the box to its ends, and Q = 1 there.
    """

    def step(state: ProbeState, action: Float[Array, "1"], key: PRNGKeyArray) -> Outcome:
        del key
        miss = (action[0] - (MIDDLE + SLOPE * state.observation[0])) / HALF
        return _outcome(state, state.observation, 1 - miss**2, ends=True)

    return JaxEnv(_box_spec("c5", LEFT, RIGHT), _from_sign, step, _draw)


def _box_spec(name: str, low: float, high: float) -> EnvSpec:
    box = ActionBox((1,), (low,), (high,))
    return EnvSpec(f"probe/{name}", (1,), "float32", 0, observation_low=(-1.0,), observation_high=(1.0,), box=box)


def _ignore_action(name: str) -> Probe:
    """The probe of this number with an action in (−1, 1) in the place of its only one."""
    probe = PROBES[name]
    return probe._replace(make=lambda: replace(probe.make(), spec=_box_spec(f"c{name}", -1.0, 1.0)))


BOX_PROBES: dict[str, Probe] = {
    "c1": _ignore_action("1"),
    "c2": _ignore_action("2"),
    "c3": _ignore_action("3"),
    "c4": Probe(aimed_action, (0.0,), lambda _: ((1.0,),), 1.0, best_actions=(AIM,)),
    "c5": Probe(
        observed_aim, (-1.0, 1.0), lambda _: ((1.0,), (1.0,)), 1.0, best_actions=(MIDDLE - SLOPE, MIDDLE + SLOPE)
    ),
    "c6": _ignore_action("6"),
    "c7": _ignore_action("7"),
}
"""The probes with continuous actions by the last part of their id: `probe/c1` to `probe/c7`."""
