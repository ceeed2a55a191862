"""Markov decision processes small enough to write down, and the ones that the paper uses.

For each state and action there is a list of outcomes: a probability, the next state, a reward, and whether the episode
ends. Lists are padded with outcomes of probability zero, so that a process is a handful of arrays.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from qemrl.estimators.distributions import Distribution, normal_mixture


@dataclass(frozen=True)
class RewardDistribution:
    """The distribution of a random reward, known exactly, and a way to draw from it inside a compiled program."""

    distribution: Distribution
    """Quantiles, mean and standard deviation."""

    draw: Callable[[PRNGKeyArray], Float[Array, ""]]
    """One reward, from a JAX key."""


def uniform(low: float, high: float) -> RewardDistribution:
    """A reward that is uniform between `low` and `high`."""
    if not low < high:
        raise ValueError(f"low must be less than high, got {low} and {high}")
    width = high - low
    distribution = Distribution(
        f"U({low:g}, {high:g})",
        lambda levels: low + width * levels,
        lambda levels: np.full_like(levels, width),
        mean=(low + high) / 2,
        std=width / math.sqrt(12),
    )
    return RewardDistribution(distribution, lambda key: jax.random.uniform(key, minval=low, maxval=high))


def exponential(mean: float) -> RewardDistribution:
    """A reward that is exponential with the given mean."""
    if not mean > 0:
        raise ValueError(f"the mean must be positive, got {mean}")
    distribution = Distribution(
        f"Exp, mean {mean:g}",
        lambda levels: -mean * np.log1p(-levels),
        lambda levels: mean / (1 - levels),
        mean=mean,
        std=mean,
    )
    return RewardDistribution(distribution, lambda key: mean * jax.random.exponential(key))


def normal_mixture_reward(
    weights: tuple[float, ...], means: tuple[float, ...], stds: tuple[float, ...]
) -> RewardDistribution:
    """A reward from a mixture of normal distributions."""
    distribution = normal_mixture(weights, means, stds)

    def draw(key: PRNGKeyArray) -> Float[Array, ""]:
        which, noise = jax.random.split(key)
        part = jax.random.choice(which, len(weights), p=jnp.asarray(weights, jnp.float32))
        center, std = (jnp.asarray(x, jnp.float32)[part] for x in (means, stds))
        return center + std * jax.random.normal(noise)

    return RewardDistribution(distribution, draw)


class Outcome(NamedTuple):
    """What may follow an action in a state."""

    prob: float
    next_state: int
    reward: float | RewardDistribution
    terminal: bool


@dataclass(frozen=True, eq=False)
class TabularMDP:
    """A finite Markov decision process, as arrays over states s, actions a and outcomes k."""

    name: str
    probs: Float[np.ndarray, "s a k"]
    next_states: Int[np.ndarray, "s a k"]
    rewards: Float[np.ndarray, "s a k"]
    """The reward, or what is added to it if there is a distribution."""
    reward_index: Int[np.ndarray, "s a k"]
    """Which of `reward_distributions` the reward is drawn from; −1 where it is a number."""
    terminal: Bool[np.ndarray, "s a k"]
    discount: float
    initial: Float[np.ndarray, " s"]
    """The distribution of the first state."""
    reward_distributions: tuple[RewardDistribution, ...] = ()
    grid: tuple[str, ...] = ()
    """The map, for processes that have one: a letter for each state, row by row."""

    @property
    def num_states(self) -> int:
        """The number of states."""
        return self.probs.shape[0]

    @property
    def num_actions(self) -> int:
        """The number of actions."""
        return self.probs.shape[1]

    @property
    def has_continuous_rewards(self) -> bool:
        """True if some reward is drawn from a distribution."""
        return bool((self.reward_index >= 0).any())

    @property
    def mean_rewards(self) -> Float[np.ndarray, "s a k"]:
        """The expected reward of each outcome."""
        means = np.array([each.distribution.mean for each in self.reward_distributions] + [0.0])
        return self.rewards + means[self.reward_index]

    @property
    def start(self) -> int:
        """The most likely first state."""
        return int(self.initial.argmax())


def make_mdp(
    outcomes: Sequence[Sequence[Sequence[Outcome | tuple]]],
    discount: float,
    initial: int | Sequence[float] = 0,
    name: str = "custom",
    grid: tuple[str, ...] = (),
) -> TabularMDP:
    """The process in which action a in state s leads to one of `outcomes[s][a]`.

    Args:
        outcomes: For each state and action, tuples (probability, next state, reward, terminal). A reward is a number
            or a `RewardDistribution`.
        discount: What a reward one step later is worth, between 0 and 1.
        initial: The first state, or its distribution.
        name: What the process is called in tables and figures.
        grid: The map, if it has one.

    Raises:
        ValueError: If probabilities do not add up to one, or a state does not exist; the message says where.
    """
    if not 0 <= discount <= 1:
        raise ValueError(f"a discount lies between 0 and 1, got {discount}")
    states, actions = len(outcomes), len(outcomes[0]) if outcomes else 0
    if not states or not actions:
        raise ValueError("a process needs at least one state and one action")
    width = max(len(row) for state in outcomes for row in state)
    shape = (states, actions, width)
    probs, rewards = np.zeros(shape), np.zeros(shape)
    next_states, reward_index = np.zeros(shape, dtype=np.int64), np.full(shape, -1)
    terminal = np.ones(shape, dtype=bool)
    found: list[RewardDistribution] = []
    for s, row in enumerate(outcomes):
        if len(row) != actions:
            raise ValueError(f"state {s} has {len(row)} actions, state 0 has {actions}")
        for a, listed in enumerate(row):
            _check_outcomes(s, a, listed, states)
            for k, (prob, next_state, reward, ends) in enumerate(listed):
                probs[s, a, k], next_states[s, a, k], terminal[s, a, k] = prob, next_state, ends
                if isinstance(reward, RewardDistribution):
                    if reward not in found:
                        found.append(reward)
                    reward_index[s, a, k] = found.index(reward)
                else:
                    rewards[s, a, k] = reward
    return TabularMDP(
        name,
        probs,
        next_states,
        rewards,
        reward_index,
        terminal,
        discount,
        _initial_probs(initial, states),
        tuple(found),
        grid,
    )


def _check_outcomes(s: int, a: int, listed: Sequence, states: int) -> None:
    place = f"state {s}, action {a}"
    for prob, next_state, reward, _ in listed:
        if not prob >= 0:
            raise ValueError(f"{place}: a probability is {prob}")
        if not 0 <= next_state < states:
            raise ValueError(f"{place}: there is no state {next_state}; states are 0 to {states - 1}")
        if not isinstance(reward, RewardDistribution) and not np.isfinite(reward):
            raise ValueError(f"{place}: a reward is {reward}")
    total = sum(outcome[0] for outcome in listed)
    if abs(total - 1) > 1e-8:
        raise ValueError(f"{place}: the probabilities add up to {total:.10g}, not to one")


def _initial_probs(initial: int | Sequence[float], states: int) -> Float[np.ndarray, " s"]:
    if isinstance(initial, int | np.integer):
        if not 0 <= initial < states:
            raise ValueError(f"there is no first state {initial}; states are 0 to {states - 1}")
        return np.eye(states)[initial]
    distribution = np.asarray(initial, dtype=np.float64)
    if distribution.shape != (states,) or abs(distribution.sum() - 1) > 1e-8 or distribution.min() < 0:
        raise ValueError(f"the distribution of the first state must be {states} probabilities that add up to one")
    return distribution


def from_gymnasium(env: Any, discount: float, name: str | None = None) -> TabularMDP:
    """The process behind a Gymnasium environment, or its id, that exposes its table `P` (the toy-text family)."""
    import gymnasium

    env = gymnasium.make(env) if isinstance(env, str) else env
    inner = env.unwrapped
    if not hasattr(inner, "P"):
        raise ValueError(f"{env} exposes no table of transitions `P`; make_mdp takes one of your own")
    states = sorted(inner.P)
    outcomes = [
        [[Outcome(float(p), int(n), float(r), bool(t)) for p, n, r, t in inner.P[s][a]] for a in sorted(inner.P[s])]
        for s in states
    ]
    initial = getattr(inner, "initial_state_distrib", None)
    grid = tuple(letter.decode() for letter in inner.desc.ravel()) if hasattr(inner, "desc") else ()
    label = name or (env.spec.id if env.spec is not None else type(inner).__name__)
    return make_mdp(outcomes, discount, 0 if initial is None else list(map(float, initial)), label, grid)


def frozen_lake(map_or_size: str | Sequence[str] = "4x4", slippery: bool = True, discount: float = 0.999) -> TabularMDP:
    """FrozenLake from Gymnasium's own table: "4x4", "8x8", or a map as a list of rows of the letters S, F, H, G."""
    from gymnasium.envs.toy_text.frozen_lake import MAPS, FrozenLakeEnv

    if isinstance(map_or_size, str):
        if map_or_size not in MAPS:
            raise ValueError(f"there is no map {map_or_size!r}; maps are {', '.join(MAPS)}, or give a list of rows")
        return from_gymnasium(
            FrozenLakeEnv(map_name=map_or_size, is_slippery=slippery), discount, f"FrozenLake {map_or_size}"
        )
    rows = list(map_or_size)
    if len({len(row) for row in rows}) != 1 or set("".join(rows)) - set("SFHG") or "".join(rows).count("S") < 1:
        raise ValueError(f"a map is rows of equal length of the letters S, F, H and G, with an S; got {rows}")
    return from_gymnasium(FrozenLakeEnv(desc=rows, is_slippery=slippery), discount, "FrozenLake")


def chain(length: int = 6, discount: float = 0.99, reward: float | RewardDistribution | None = None) -> TabularMDP:
    """The paper's Figure 3: one action, states in a row, and a random reward at the end.

    Its parameters stand only in a figure that is not part of the text; without a `reward` it is the mixture of the
    paper's appendix C.
    """
    if length < 2:
        raise ValueError(f"a chain has at least two states, got {length}")
    last = normal_mixture_reward((0.7, 0.3), (-2.0, 3.0), (1.0, 1.0)) if reward is None else reward
    steps = [[[Outcome(1.0, s + 1, 0.0, False)]] for s in range(length - 1)]
    return make_mdp([*steps, [[Outcome(1.0, length - 1, last, True)]]], discount, name="Chain")


def toy_uniform(num_quantiles: int, discount: float = 0.9) -> TabularMDP:
    """The paper's Figure 2(a): x0 goes to x1 or x2 with equal chances, rewards U(0, 1) and U(1/N, 1 + 1/N) there."""
    shift = 1 / num_quantiles
    first = [Outcome(0.5, 1, 0.0, False), Outcome(0.5, 2, 0.0, False)]
    ends = [[[Outcome(1.0, s, uniform(low, low + 1), True)]] for s, low in ((1, 0.0), (2, shift))]
    return make_mdp([[first], *ends], discount, name="Uniform rewards")


def toy_exponential(means: tuple[float, float] = (1.2, 1.0), discount: float = 1.0) -> TabularMDP:
    """The paper's Figure 2(b): two actions at x0, each a path of two steps to an exponential reward.

    States: x0, x1 and x2 (after either action), x3 and x4 (where rewards are). The paper gives no discount; rewards are
    scaled such that the returns at x0 have the stated means.
    """
    if not 0 < discount <= 1:
        raise ValueError(f"the returns have these means for discounts above 0 and up to 1, got {discount}")
    scaled = [exponential(mean / discount**2) for mean in means]
    start = [[Outcome(1.0, 1, 0.0, False)], [Outcome(1.0, 2, 0.0, False)]]
    walk = [[[Outcome(1.0, s + 2, 0.0, False)]] * 2 for s in (1, 2)]
    ends = [[[Outcome(1.0, s, reward, True)]] * 2 for s, reward in ((3, scaled[0]), (4, scaled[1]))]
    return make_mdp([start, *walk, *ends], discount, name="Exponential rewards")


def random_mdp(
    num_states: int, num_actions: int, branching: int, rng: np.random.Generator, discount: float = 0.9
) -> TabularMDP:
    """A process with random transitions to `branching` states, normal rewards, and a tenth of outcomes terminal."""
    outcomes = [
        [
            [
                Outcome(float(p), int(n), float(rng.normal()), bool(rng.random() < 0.1))
                for p, n in zip(
                    rng.dirichlet(np.ones(branching)), rng.integers(num_states, size=branching), strict=True
                )
            ]
            for _ in range(num_actions)
        ]
        for _ in range(num_states)
    ]
    return make_mdp(outcomes, discount, name="Random")
