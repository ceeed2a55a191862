"""Temporal-difference learning of return distributions on small processes, compiled, many seeds at once.

Every representation keeps a row of numbers for each state and action, and every estimate of Q is linear in the row. So
one loop learns them all: quantile TD (QDRL; QEMRL if the estimator is QEM), categorical TD, expectile TD and Q-learning
differ in their `update` of a row and in the weights that turn a row into Q.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from qemrl.tabular.exact import Policy, action_probs
from qemrl.tabular.mdp import RewardDistribution, TabularMDP
from qemrl.tabular.representations import Quantiles, Representation, Row
from qemrl.tabular.variance_state import VarianceState, init_variance_state, update_variance_state, variance_inputs_at


@dataclass(frozen=True)
class Steps:
    """A schedule of constant pieces: `values[i]` until `ends[i]`, the last value forever."""

    values: tuple[float, ...]
    ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.values) != len(self.ends) + 1 or list(self.ends) != sorted(self.ends):
            raise ValueError(f"{len(self.values)} values need one end less, in increasing order; got {self.ends}")

    def __call__(self, count: Int[Array, ""]) -> Float[Array, ""]:
        """The value at a count of steps or episodes."""
        piece = sum(((count >= end).astype(jnp.int32) for end in self.ends), jnp.zeros((), jnp.int32))
        return jnp.asarray(self.values, jnp.float32)[piece]


@dataclass(frozen=True)
class Geometric:
    """A schedule of `base ** floor(count / every)`; the paper's ε is 0.9 ** floor(t / 100)."""

    base: float
    every: int = 1

    def __call__(self, count: Int[Array, ""]) -> Float[Array, ""]:
        """The value at a count of steps or episodes."""
        return jnp.float32(self.base) ** (count // self.every).astype(jnp.float32)


Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]
"""A learning rate, or a chance to explore, by a count of steps or episodes."""


@dataclass(frozen=True)
class Learning:
    """How to learn."""

    representation: Representation
    """What is learned."""

    steps: int
    """The number of transitions."""

    learning_rate: Schedule = Steps((0.05,))
    """The step size, at a count of transitions."""

    epsilon: Schedule = Steps((0.1,))
    """The chance of a random action in control, at a count that `epsilon_counts` names."""

    epsilon_counts: Literal["steps", "episodes"] = "steps"
    """What the schedule of epsilon counts."""

    max_episode_steps: int | None = None
    """Where episodes are truncated; they do not terminate there, so the target bootstraps."""

    record_every: int = 1000
    """How many transitions pass between two records."""

    variance_rate: float = 1e-3
    """The smallest weight of a visit in what V is estimated from: running means of rows and moments of TD errors."""


class History(NamedTuple):
    """What was recorded on the way, for each seed and record t, and what was learned in the end."""

    steps: Int[np.ndarray, " t"]
    """The number of transitions at each record."""
    q: Float[np.ndarray, "seeds t s a"]
    """The estimates of Q."""
    rows: Float[np.ndarray, "seeds t a d"]
    """The rows of the first state."""
    counts: Int[np.ndarray, "seeds t s a k"]
    """How often each outcome had been seen."""
    episodes: Int[np.ndarray, "seeds t"]
    """How many episodes were over."""
    table: Float[np.ndarray, "seeds s a d"]
    """The rows of all states in the end."""
    variance_state: VarianceState | None = None
    """What V was estimated from in the end, where it was."""


class _Model(NamedTuple):
    """The process, the policy and the weights of Q, as arguments of the compiled programs."""

    outcome_ends: Float[Array, "s a ends"]
    next_states: Int[Array, "s a k"]
    rewards: Float[Array, "s a k"]
    reward_index: Int[Array, "s a k"]
    terminal: Bool[Array, "s a k"]
    first_ends: Float[Array, " ends"]
    discount: Float[Array, ""]
    weights: Row
    policy_ends: Float[Array, "s ends"] | None


class _State(NamedTuple):
    """What one seed has learned, and where it is."""

    table: Float[Array, "s a d"]
    counts: Int[Array, "s a k"]
    state: Int[Array, ""]
    age: Int[Array, ""]
    episodes: Int[Array, ""]
    step: Int[Array, ""]
    variance_state: VarianceState | None


class _Transition(NamedTuple):
    """One step of the process, and the row of the action that follows it."""

    place: tuple[Int[Array, ""], Int[Array, ""]]
    """The state and the action."""
    outcome: Int[Array, ""]
    reward: Float[Array, ""]
    next_state: Int[Array, ""]
    ends: Bool[Array, ""]
    discount: Float[Array, ""]
    """Zero at an end."""
    next_row: Row


def learn(
    mdp: TabularMDP,
    learning: Learning,
    seeds: Int[np.ndarray, " seeds"] | list[int] | range,
    policy: Policy | None = None,
    tick: Callable[[float], None] = lambda _: None,
) -> History:
    """Learn from one stream of transitions for each seed.

    With a `policy` its returns are learned (evaluation; it also acts). Without, the greedy policy's are (control,
    acting with ε-greedy). The tables hold rows for states and actions in both cases.
    """
    if learning.steps < 1 or learning.record_every < 1 or learning.steps % learning.record_every:
        raise ValueError(f"{learning.steps} steps are not a multiple of record_every={learning.record_every}")
    keys = jnp.stack([jax.random.key(int(seed)) for seed in seeds])
    model = _make_model(mdp, learning.representation, policy)
    start, advance, estimate = _programs(_program_settings(learning), mdp.reward_distributions)
    state = start(model, keys)
    records = learning.steps // learning.record_every
    recorded = []
    for record in range(records):
        state = advance(model, state, keys)
        q = estimate(model, state)
        recorded.append(jax.tree.map(np.asarray, (q, state.table[:, mdp.start], state.counts, state.episodes)))
        tick((record + 1) / records)
    q, rows, counts, episodes = (np.stack(parts, axis=1) for parts in zip(*recorded, strict=True))
    steps = learning.record_every * np.arange(1, records + 1)
    variance_state = jax.tree.map(np.asarray, state.variance_state)
    return History(steps, q, rows, counts, episodes, np.asarray(state.table), variance_state)


def _make_model(mdp: TabularMDP, representation: Representation, policy: Policy | None) -> _Model:
    def ends(probs: Float[np.ndarray, "*batch k"]) -> Float[Array, "*batch ends"]:
        return jnp.asarray(np.cumsum(probs, -1)[..., :-1], jnp.float32)

    return _Model(
        ends(mdp.probs),
        jnp.asarray(mdp.next_states, jnp.int32),
        jnp.asarray(mdp.rewards, jnp.float32),
        jnp.asarray(mdp.reward_index, jnp.int32),
        jnp.asarray(mdp.terminal),
        ends(mdp.initial),
        jnp.asarray(mdp.discount, jnp.float32),
        jnp.asarray(representation.mean_weights(), jnp.float32),
        None if policy is None else ends(action_probs(mdp, policy)),
    )


def _program_settings(learning: Learning) -> Learning:
    """The settings with what a program does not depend on left out."""
    return replace(learning, representation=learning.representation.rule(), steps=learning.record_every)


@lru_cache(maxsize=64)
def _programs(
    learning: Learning, reward_distributions: tuple[RewardDistribution, ...]
) -> tuple[Callable, Callable, Callable]:
    """The compiled start, stretch between two records, and estimate of Q, of a batch of seeds.

    The process is an argument of all, so that they are compiled once for each shape.
    """
    learner = _Learner(learning, reward_distributions)
    return (
        jax.jit(jax.vmap(learner.init, (None, 0))),
        jax.jit(jax.vmap(learner.advance, (None, 0, 0)), donate_argnums=1),
        jax.jit(jax.vmap(learner.q_values, (None, 0))),
    )


@dataclass(frozen=True)
class _Learner:
    """Learning of one seed."""

    learning: Learning
    reward_distributions: tuple[RewardDistribution, ...]

    def init(self, model: _Model, key: PRNGKeyArray) -> _State:
        representation = self.learning.representation
        table_key, state_key = jax.random.split(jax.random.fold_in(key, 2**31 - 1))
        shape = model.next_states.shape
        zero = jnp.zeros((), jnp.int32)
        first = _index(model.first_ends, jax.random.uniform(state_key))
        table = representation.init(table_key, shape[:2])
        variance_state = None
        if isinstance(representation, Quantiles) and representation.needs:
            variance_state = init_variance_state(representation, table)
        return _State(table, jnp.zeros(shape, jnp.int32), first, zero, zero, zero, variance_state)

    def advance(self, model: _Model, state: _State, key: PRNGKeyArray) -> _State:
        """Learn until the next record."""
        draws = jax.random.uniform(jax.random.fold_in(key, state.step), (self.learning.record_every, 4))
        return jax.lax.scan(partial(self.step, model, key), state, draws)[0]

    def q_values(self, model: _Model, now: _State, place: Any = ...) -> Float[Array, "*batch"]:
        """Q of all actions, in a state or in all."""
        rows, representation = now.table[place], self.learning.representation
        if now.variance_state is None:
            return rows @ model.weights
        assert isinstance(representation, Quantiles)
        visits = now.counts[place].sum(-1)
        inputs = variance_inputs_at(representation, now.variance_state, rows, now.step, visits, place)
        return representation.q(rows, inputs)

    def greedy_action(self, model: _Model, now: _State, state: Int[Array, ""]) -> Int[Array, ""]:
        return jnp.argmax(self.q_values(model, now, state)).astype(jnp.int32)

    def act(self, model: _Model, now: _State, explore: Float[Array, ""], which: Float[Array, ""]) -> Int[Array, ""]:
        """The action of the policy, or in control that of ε-greedy."""
        if model.policy_ends is not None:
            return _index(model.policy_ends[now.state], which)
        actions = model.next_states.shape[1]
        count = now.step if self.learning.epsilon_counts == "steps" else now.episodes
        random = jnp.minimum((which * actions).astype(jnp.int32), actions - 1)
        return jnp.where(explore < self.learning.epsilon(count), random, self.greedy_action(model, now, now.state))

    def step(self, model: _Model, key: PRNGKeyArray, now: _State, draws: Float[Array, "4"]) -> tuple[_State, None]:
        """Act, learn from what happens, and go on to the next state, or to the first of the next episode."""
        seen = self.transition(model, key, now, draws)
        row = now.table[seen.place]
        new_row = row + self.learning.learning_rate(now.step) * self.direction(key, now, row, seen)
        age = now.age + 1
        limit = self.learning.max_episode_steps
        over = seen.ends if limit is None else seen.ends | (age >= limit)
        first = _index(model.first_ends, draws[3])  # at an end the draw of the next action does not count
        return _State(
            now.table.at[seen.place].set(new_row),
            now.counts.at[*seen.place, seen.outcome].add(1),
            jnp.where(over, first, seen.next_state),
            jnp.where(over, 0, age),
            now.episodes + over.astype(jnp.int32),
            now.step + 1,
            self.variance_state(now, row, seen),
        ), None

    def transition(self, model: _Model, key: PRNGKeyArray, now: _State, draws: Float[Array, "4"]) -> _Transition:
        """What happens in this state, and the row of the action that is evaluated in the next."""
        action = self.act(model, now, draws[0], draws[1])
        outcome = _index(model.outcome_ends[now.state, action], draws[2])
        place = (now.state, action, outcome)
        reward, next_state, ends = model.rewards[place], model.next_states[place], model.terminal[place]
        if self.reward_distributions:
            reward_key = jax.random.fold_in(jax.random.fold_in(key, 1), now.step)
            branches = [lambda _: jnp.zeros(()), *(each.draw for each in self.reward_distributions)]
            reward = reward + jax.lax.switch(model.reward_index[place] + 1, branches, reward_key)
        if model.policy_ends is not None:
            next_action = _index(model.policy_ends[next_state], draws[3])
        else:
            next_action = self.greedy_action(model, now, next_state)
        discount = model.discount * (1 - ends.astype(jnp.float32))
        next_row = now.table[next_state, next_action]
        return _Transition((now.state, action), outcome, reward, next_state, ends, discount, next_row)

    def direction(self, key: PRNGKeyArray, now: _State, row: Row, seen: _Transition) -> Row:
        """Where the row moves; of several heads, each learns from a random half of the transitions."""
        representation = self.learning.representation
        direction = representation.update(row, seen.reward, seen.discount, seen.next_row)
        heads = representation.num_heads if isinstance(representation, Quantiles) else 1
        if heads == 1:
            return direction
        mask_key = jax.random.fold_in(jax.random.fold_in(key, 2), now.step)
        learns = jnp.repeat(jax.random.bernoulli(mask_key, shape=(heads,)), row.size // heads)
        return jnp.where(learns, direction, 0.0)

    def variance_state(self, now: _State, row: Row, seen: _Transition) -> VarianceState | None:
        """What V is estimated from, after this transition."""
        representation = self.learning.representation
        if now.variance_state is None:
            return None
        assert isinstance(representation, Quantiles)
        visits = now.counts[seen.place].sum()
        rate = jnp.maximum(self.learning.variance_rate, 1 / (visits.astype(jnp.float32) + 1))
        targets = seen.reward + seen.discount * seen.next_row
        return update_variance_state(representation, now.variance_state, seen.place, row, targets, rate)


def _index(ends: Float[Array, " k"], draw: Float[Array, ""]) -> Int[Array, ""]:
    """Which part of [0, 1) a draw falls into, the parts being given by their ends but the last."""
    return (draw >= ends).sum().astype(jnp.int32)
