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
from qemrl.tabular.mdp import TabularMDP
from qemrl.tabular.representations import Quantiles, Representation, Row
from qemrl.tabular.rewards import RewardDistribution
from qemrl.tabular.schedules import Schedule, Steps
from qemrl.tabular.variance_state import VarianceState, update_variance_state, variance_inputs_at
from qemrl.tabular.variance_state import begin as init_variance_state


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
    """Where episodes are cut; a cut is no end, the return goes on."""

    record_every: int = 1000
    """How many transitions pass between two records."""

    belief_rate: float = 1e-3
    """The least weight of a visit in EMA networks and running moments, for estimators that V is estimated for."""


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
    distributions: Int[Array, "s a k"]
    terminal: Bool[Array, "s a k"]
    first_ends: Float[Array, " ends"]
    discount: Float[Array, ""]
    weights: Row
    policy_ends: Float[Array, "s ends"] | None


class _State(NamedTuple):
    table: Float[Array, "s a d"]
    counts: Int[Array, "s a k"]
    state: Int[Array, ""]
    age: Int[Array, ""]
    episodes: Int[Array, ""]
    step: Int[Array, ""]
    variance_state: VarianceState | None


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
    model = _model(mdp, learning.representation, policy)
    start, advance, estimate = _programs(_shared(learning), mdp.reward_distributions)
    state = start(model, keys)
    records = learning.steps // learning.record_every
    kept = []
    for record in range(records):
        state = advance(model, state, keys)
        q = estimate(model, state)
        kept.append(jax.tree.map(np.asarray, (q, state.table[:, mdp.start], state.counts, state.episodes)))
        tick((record + 1) / records)
    q, rows, counts, episodes = (np.stack(parts, axis=1) for parts in zip(*kept, strict=True))
    steps = learning.record_every * np.arange(1, records + 1)
    variance_state = jax.tree.map(np.asarray, state.variance_state)
    return History(steps, q, rows, counts, episodes, np.asarray(state.table), variance_state)


def _model(mdp: TabularMDP, representation: Representation, policy: Policy | None) -> _Model:
    def ends(probs: Float[np.ndarray, "*batch k"]) -> Float[Array, "*batch ends"]:
        return jnp.asarray(np.cumsum(probs, -1)[..., :-1], jnp.float32)

    return _Model(
        ends(mdp.probs),
        jnp.asarray(mdp.next_states, jnp.int32),
        jnp.asarray(mdp.rewards, jnp.float32),
        jnp.asarray(mdp.distributions, jnp.int32),
        jnp.asarray(mdp.terminal),
        ends(mdp.initial),
        jnp.asarray(mdp.discount, jnp.float32),
        jnp.asarray(representation.mean_weights(), jnp.float32),
        None if policy is None else ends(action_probs(mdp, policy)),
    )


def _shared(learning: Learning) -> Learning:
    """What of the settings a program depends on."""
    return replace(learning, representation=learning.representation.rule(), steps=learning.record_every)


@lru_cache(maxsize=64)
def _programs(
    learning: Learning, reward_distributions: tuple[RewardDistribution, ...]
) -> tuple[Callable, Callable, Callable]:
    """The compiled start, stretch between two records, and estimate of Q, of a batch of seeds.

    The process is an argument of all, so that they are compiled once for each shape.
    """
    begin, step, estimate = _build(learning, reward_distributions)

    def stretch(model: _Model, state: _State, key: PRNGKeyArray) -> _State:
        draws = jax.random.uniform(jax.random.fold_in(key, state.step), (learning.record_every, 4))
        return jax.lax.scan(partial(step, model, key), state, draws)[0]

    return (
        jax.jit(jax.vmap(begin, (None, 0))),
        jax.jit(jax.vmap(stretch, (None, 0, 0)), donate_argnums=1),
        jax.jit(jax.vmap(estimate, (None, 0))),
    )


def _build(
    learning: Learning, reward_distributions: tuple[RewardDistribution, ...]
) -> tuple[Callable, Callable, Callable]:
    representation = learning.representation
    quantiles = representation if isinstance(representation, Quantiles) else None
    heads = 1 if quantiles is None else quantiles.num_heads

    def begin(model: _Model, key: PRNGKeyArray) -> _State:
        table_key, state_key = jax.random.split(jax.random.fold_in(key, 2**31 - 1))
        shape = model.next_states.shape
        zero = jnp.zeros((), jnp.int32)
        first = _index(model.first_ends, jax.random.uniform(state_key))
        table = representation.init(table_key, shape[:2])
        variance_state = init_variance_state(quantiles, table) if quantiles is not None and quantiles.needs else None
        return _State(table, jnp.zeros(shape, jnp.int32), first, zero, zero, zero, variance_state)

    def estimate(model: _Model, now: _State, place: Any = ...) -> Float[Array, "*batch"]:
        """Q of all actions, in a state or in all."""
        rows = now.table[place]
        if quantiles is None or now.variance_state is None:
            return rows @ model.weights
        visits = now.counts[place].sum(-1)
        return quantiles.q(rows, variance_inputs_at(quantiles, now.variance_state, rows, now.step, visits, place))

    def greedy(model: _Model, now: _State, state: Int[Array, ""]) -> Int[Array, ""]:
        return jnp.argmax(estimate(model, now, state)).astype(jnp.int32)

    def act(model: _Model, now: _State, explore: Float[Array, ""], which: Float[Array, ""]) -> Int[Array, ""]:
        if model.policy_ends is not None:
            return _index(model.policy_ends[now.state], which)
        actions = model.next_states.shape[1]
        count = now.step if learning.epsilon_counts == "steps" else now.episodes
        random = jnp.minimum((which * actions).astype(jnp.int32), actions - 1)
        return jnp.where(explore < learning.epsilon(count), random, greedy(model, now, now.state))

    def draw_reward(key: PRNGKeyArray, distribution: Int[Array, ""]) -> Float[Array, ""]:
        branches = [lambda _: jnp.zeros(()), *(reward.draw for reward in reward_distributions)]
        return jax.lax.switch(distribution + 1, branches, key)

    def step(model: _Model, key: PRNGKeyArray, now: _State, draws: Float[Array, "4"]) -> tuple[_State, None]:
        action = act(model, now, draws[0], draws[1])
        outcome = _index(model.outcome_ends[now.state, action], draws[2])
        place = (now.state, action, outcome)
        reward, following, ends = model.rewards[place], model.next_states[place], model.terminal[place]
        if reward_distributions:
            reward = reward + draw_reward(
                jax.random.fold_in(jax.random.fold_in(key, 1), now.step), model.distributions[place]
            )
        if model.policy_ends is not None:
            next_action = _index(model.policy_ends[following], draws[3])
        else:
            next_action = greedy(model, now, following)
        row = now.table[now.state, action]
        discount = model.discount * (1 - ends.astype(jnp.float32))
        next_row = now.table[following, next_action]
        direction = representation.update(row, reward, discount, next_row)
        if heads > 1:
            mask_key = jax.random.fold_in(jax.random.fold_in(key, 2), now.step)
            chosen = jnp.repeat(jax.random.bernoulli(mask_key, shape=(heads,)), row.size // heads)
            direction = jnp.where(chosen, direction, 0.0)
        variance_state = now.variance_state
        if quantiles is not None and variance_state is not None:
            seen = now.counts[now.state, action].sum()
            rate = jnp.maximum(learning.belief_rate, 1 / (seen.astype(jnp.float32) + 1))
            targets = reward + discount * next_row
            variance_state = update_variance_state(quantiles, variance_state, (now.state, action), row, targets, rate)
        row = row + learning.learning_rate(now.step) * direction
        age = now.age + 1
        over = ends if learning.max_episode_steps is None else ends | (age >= learning.max_episode_steps)
        first = _index(model.first_ends, draws[3])  # at an end the draw of the next action does not count
        return _State(
            now.table.at[now.state, action].set(row),
            now.counts.at[place].add(1),
            jnp.where(over, first, following),
            jnp.where(over, 0, age),
            now.episodes + over.astype(jnp.int32),
            now.step + 1,
            variance_state,
        ), None

    return begin, step, estimate


def _index(ends: Float[Array, " k"], draw: Float[Array, ""]) -> Int[Array, ""]:
    """Which part of [0, 1) a draw falls into, the parts being given by their ends but the last."""
    return (draw >= ends).sum().astype(jnp.int32)
