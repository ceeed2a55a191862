"""Probe environments: each so small that its answer is known, and each fails for one reason.

Run in order, they tell what is wrong with an agent: the loss (1), the input (2), the discount and the bootstrap (3),
the choice of actions (4), both together (5), truncation taken for termination (6), the learned distribution of returns
(7), and actions that are not allowed (8). Observations are one float32 in [−1, 1].
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8
from scipy.special import ndtri

from qemrl.envs.jax.env import Action, JaxEnv, Outcome, limit_time
from qemrl.types import EnvSpec

REWARD_MEAN, REWARD_STD = 1.0, 2.0
"""The distribution of the reward in probe 7, a normal one."""

LIMIT = 5
"""The number of steps after which probe 6 truncates."""

FORBIDDEN = 2
"""The action that the last state of probe 8 does not allow."""


class ProbeState(NamedTuple):
    """What a probe shows, and how far it is."""

    observation: Float[Array, "1"]
    steps: Int[Array, ""]


class Probe(NamedTuple):
    """A probe and its answer."""

    make: Callable[[], JaxEnv]
    shows: str
    """What an agent that solves it has right."""

    observations: tuple[float, ...]
    """All that can be observed, each once."""

    values: Callable[[float], tuple[tuple[float, ...], ...]]
    """From the discount to the optimal Q of each observation and action; NaN for an action that is not allowed."""

    mean_return: float
    """The undiscounted return of the best policy, on average."""

    quantiles: Callable[[Float[np.ndarray, " n"]], Float[np.ndarray, " n"]] | None = None
    """From levels to the quantiles of the return, where its distribution is what is probed."""


def constant_reward() -> JaxEnv:
    """One action, one step, observation 0, reward 1: Q = 1."""

    def step(state: ProbeState, action: Action, key: PRNGKeyArray) -> Outcome:
        del action, key
        return outcome(state, state.observation, 1.0, ends=True)

    return _probe("1", 1, from_zero, step)


def observed_reward() -> JaxEnv:
    """One action, one step, observation −1 or 1 by chance, reward equal to it: Q(−1) = −1, Q(1) = 1."""

    def step(state: ProbeState, action: Action, key: PRNGKeyArray) -> Outcome:
        del action, key
        return outcome(state, state.observation, state.observation[0], ends=True)

    return _probe("2", 1, from_sign, step)


def delayed_reward() -> JaxEnv:
    """One action, two steps, observation 0 and then 1, reward 1 at the end: Q(0) = discount, Q(1) = 1."""

    def step(state: ProbeState, action: Action, key: PRNGKeyArray) -> Outcome:
        del action, key
        last = state.steps == 1
        return outcome(state, jnp.ones(1, jnp.float32), last.astype(jnp.float32), ends=last)

    return _probe("3", 1, from_zero, step)


def two_actions() -> JaxEnv:
    """Two actions, one step, observation 0, reward −1 for action 0 and 1 for action 1: Q = (−1, 1)."""

    def step(state: ProbeState, action: Int[Array, ""], key: PRNGKeyArray) -> Outcome:
        del key
        return outcome(state, state.observation, _sign(action == 1), ends=True)

    return _probe("4", 2, from_zero, step)


def matching_action() -> JaxEnv:
    """Two actions, one step, observation −1 or 1 by chance, reward 1 if the action is 0 at −1 or 1 at 1, else −1.

    Q(−1) = (1, −1), Q(1) = (−1, 1).
    """

    def step(state: ProbeState, action: Int[Array, ""], key: PRNGKeyArray) -> Outcome:
        del key
        return outcome(state, state.observation, _sign((action == 1) == (state.observation[0] > 0)), ends=True)

    return _probe("5", 2, from_sign, step)


def truncation() -> JaxEnv:
    """One action, observation 0, reward 1 at each step, truncated after 5 and never terminated: Q = 1 / (1 − discount).

    An agent that takes the truncation for a termination finds less than 5 for the only state there is.
    """

    def step(state: ProbeState, action: Action, key: PRNGKeyArray) -> Outcome:
        del action, key
        return outcome(state, state.observation, 1.0, ends=False)

    return limit_time(_probe("6", 1, from_zero, step), LIMIT)


def random_reward() -> JaxEnv:
    """One action, one step, observation 0, a normal reward of mean 1 and standard deviation 2.

    Q = 1, and the quantile of the return at level τ is 1 + 2 Φ⁻¹(τ).
    """

    def step(state: ProbeState, action: Action, key: PRNGKeyArray) -> Outcome:
        del action
        reward = REWARD_MEAN + REWARD_STD * jax.random.normal(key, (), jnp.float32)
        return outcome(state, state.observation, reward, ends=True)

    return _probe("7", 1, from_zero, step)


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
        return outcome(state, jnp.ones(1, jnp.float32), rewards[last.astype(jnp.int32), action], ends=last)

    def mask(state: ProbeState) -> Bool[Array, "3"]:
        return (state.observation < 0) | (jnp.arange(3) != FORBIDDEN)

    return _probe("8", 3, reset, step, mask)


PROBES: dict[str, Probe] = {
    "1": Probe(constant_reward, "a constant is learned", (0.0,), lambda _: ((1.0,),), 1.0),
    "2": Probe(observed_reward, "observations are read", (-1.0, 1.0), lambda _: ((-1.0,), (1.0,)), 0.0),
    "3": Probe(delayed_reward, "values are discounted and bootstrapped", (0.0, 1.0), lambda d: ((d,), (1.0,)), 1.0),
    "4": Probe(two_actions, "actions are told apart", (0.0,), lambda _: ((-1.0, 1.0),), 1.0),
    "5": Probe(
        matching_action,
        "actions depend on observations",
        (-1.0, 1.0),
        lambda _: ((1.0, -1.0), (-1.0, 1.0)),
        1.0,
    ),
    "6": Probe(truncation, "truncation bootstraps", (0.0,), lambda d: ((1 / (1 - d),),), float(LIMIT)),
    "7": Probe(
        random_reward,
        "the distribution of the return is learned",
        (0.0,),
        lambda _: ((REWARD_MEAN,),),
        REWARD_MEAN,
        lambda levels: REWARD_MEAN + REWARD_STD * ndtri(levels),
    ),
    "8": Probe(
        forbidden_action,
        "actions that are not allowed are neither chosen nor bootstrapped from",
        (-1.0, 1.0),
        lambda d: ((-d, -d, 1 - d), (-1.0, -2.0, float("nan"))),
        0.0,
    ),
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
    return JaxEnv(spec, reset, step, draw, mask or (lambda _: None))


def _start(observation: Float[Array, "1"]) -> tuple[ProbeState, Float[Array, "1"]]:
    return ProbeState(observation, jnp.int32(0)), observation


def from_zero(key: PRNGKeyArray) -> tuple[ProbeState, Float[Array, "1"]]:
    """The start of an episode with observation 0."""
    del key
    return _start(jnp.zeros(1, jnp.float32))


def from_sign(key: PRNGKeyArray) -> tuple[ProbeState, Float[Array, "1"]]:
    """The start of an episode with observation −1 or 1, each as likely as the other."""
    return _start(_sign(jax.random.bernoulli(key, shape=(1,))))


def _sign(positive: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.where(positive, jnp.float32(1), jnp.float32(-1))


def outcome(
    state: ProbeState, observation: Float[Array, "1"], reward: float | Float[Array, ""], ends: bool | Bool[Array, ""]
) -> Outcome:
    """What a step led to that shows this observation, gives this reward and terminates the episode or not."""
    following = ProbeState(observation, state.steps + jnp.int32(1))
    return Outcome(following, observation, jnp.asarray(reward, jnp.float32), jnp.asarray(ends), jnp.bool_(False))


def draw(state: ProbeState) -> UInt8[np.ndarray, "height width 3"]:
    """What is observed as a shade of gray, from black for −1 to white for 1."""
    shade = round(255 * (float(state.observation[0]) + 1) / 2)
    return np.full((200, 200, 3), shade, np.uint8)
