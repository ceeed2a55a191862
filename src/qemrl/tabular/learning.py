"""Temporal-difference learning of return distributions on small processes, compiled, many seeds at once.

Every representation keeps a row of numbers for each state and action, and every estimate of Q is linear in the row. So
one loop learns them all: quantile TD (QDRL; QEMRL if the estimator is QEM), categorical TD, expectile TD and Q-learning
differ in their `update` of a row and in the weights that turn a row into Q.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from qemrl.estimators.estimator import EmpiricalMean, Estimator
from qemrl.estimators.levels import midpoints
from qemrl.tabular.exact import Policy, action_probs
from qemrl.tabular.fixed_points import expectile_levels, impute
from qemrl.tabular.mdp import TabularMDP
from qemrl.tabular.rewards import RewardLaw

Row = Float[Array, " d"]


@runtime_checkable
class Representation(Protocol):
    """How a return distribution is written as a row of numbers, and learned."""

    @property
    def size(self) -> int:
        """The length of a row."""
        ...

    def mean_weights(self) -> Float[np.ndarray, " d"]:
        """The weights that make Q of a row."""
        ...

    def rule(self) -> "Representation":
        """The same without what only `mean_weights` depends on: representations with equal rules share a program."""
        ...

    def init(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Rows to start from, `shape` being that of the table without the length of a row."""
        ...

    def update(self, row: Row, reward: Float[Array, ""], discount: Float[Array, ""], following: Row) -> Row:
        """The direction in which a row moves: minus the gradient of its loss at the sampled target."""
        ...


@dataclass(frozen=True)
class Quantiles:
    """Quantiles at midpoints, learned with the pinball loss (QTD, no Huber); Q by any estimator."""

    num_quantiles: int
    """N, the number of quantiles."""

    estimator: Estimator = EmpiricalMean()
    """How quantiles become Q: the plain mean is QDRL, QEM is QEMRL."""

    low: float = -0.5
    """Initial quantiles are uniform between `low`."""

    high: float = 0.5
    """And `high`."""

    @property
    def size(self) -> int:
        """The length of a row."""
        return self.num_quantiles

    def mean_weights(self) -> Float[np.ndarray, " d"]:
        """The weights that make Q of a row."""
        return self.estimator.weights(midpoints(self.num_quantiles))[0]

    def rule(self) -> "Quantiles":
        """The same with the plain mean."""
        return replace(self, estimator=EmpiricalMean())

    def init(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Uniform rows."""
        return jax.random.uniform(key, (*shape, self.num_quantiles), minval=self.low, maxval=self.high)

    def update(self, row: Row, reward: Float[Array, ""], discount: Float[Array, ""], following: Row) -> Row:
        """τ_i − (1/N) Σ_j 1{y_j < θ_i}: at a tie the quantile counts as not above the target.

        The sum is written out: XLA then makes one vectorised kernel of it, five times as fast as a reduction.
        """
        targets = reward + discount * following
        none = jnp.zeros(row.shape, jnp.int32)
        below = sum(((targets[j] < row).astype(jnp.int32) for j in range(self.num_quantiles)), none)
        levels = jnp.asarray(midpoints(self.num_quantiles), row.dtype)
        return levels - below.astype(row.dtype) / self.num_quantiles


@dataclass(frozen=True)
class Categories:
    """Probabilities on a fixed evenly spaced support, moved towards the projected target (CDRL)."""

    low: float
    """The first atom."""

    high: float
    """The last atom."""

    num_atoms: int = 51
    """The number of atoms."""

    @property
    def size(self) -> int:
        """The length of a row."""
        return self.num_atoms

    @property
    def support(self) -> Float[np.ndarray, " d"]:
        """The atoms."""
        return np.linspace(self.low, self.high, self.num_atoms)

    def mean_weights(self) -> Float[np.ndarray, " d"]:
        """The weights that make Q of a row: the atoms."""
        return self.support

    def rule(self) -> "Categories":
        """Itself."""
        return self

    def init(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Rows of equal probabilities."""
        del key
        return jnp.full((*shape, self.num_atoms), 1 / self.num_atoms)

    def update(self, row: Row, reward: Float[Array, ""], discount: Float[Array, ""], following: Row) -> Row:
        """The projected target less the row."""
        support = jnp.asarray(self.support, row.dtype)
        targets = jnp.clip(reward + discount * support, self.low, self.high)
        width = (self.high - self.low) / (self.num_atoms - 1)
        kernel = jnp.clip(1 - jnp.abs(targets[None, :] - support[:, None]) / width, 0, 1)
        return kernel @ following - row


@dataclass(frozen=True)
class Expectiles:
    """Expectiles between levels 0.01 and 0.99, learned from imputed distributions (EDRL); Q is the middle one."""

    num_expectiles: int = 11
    """The number of expectiles, odd."""

    @property
    def size(self) -> int:
        """The length of a row."""
        return self.num_expectiles

    def mean_weights(self) -> Float[np.ndarray, " d"]:
        """The weights that make Q of a row: all on the middle."""
        return np.eye(self.num_expectiles)[self.num_expectiles // 2]

    def rule(self) -> "Expectiles":
        """Itself."""
        return self

    def init(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Rows of zeros."""
        del key
        return jnp.zeros((*shape, self.num_expectiles))

    def update(self, row: Row, reward: Float[Array, ""], discount: Float[Array, ""], following: Row) -> Row:
        """2 E|τ − 1{Y ≤ e}| (Y − e), so that the middle expectile moves by Y − e, as in Q-learning."""
        levels = expectile_levels(self.num_expectiles)
        atoms, probs = impute(following, levels)
        gaps = (reward + discount * atoms)[None, :] - row[:, None]
        sides = jnp.abs(jnp.asarray(levels, row.dtype)[:, None] - (gaps <= 0).astype(row.dtype))
        return 2 * (sides * gaps) @ probs


@dataclass(frozen=True)
class Scalar:
    """Q itself: TD(0) and Q-learning."""

    @property
    def size(self) -> int:
        """The length of a row."""
        return 1

    def mean_weights(self) -> Float[np.ndarray, " d"]:
        """One."""
        return np.ones(1)

    def rule(self) -> "Scalar":
        """Itself."""
        return self

    def init(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Rows of zeros."""
        del key
        return jnp.zeros((*shape, 1))

    def update(self, row: Row, reward: Float[Array, ""], discount: Float[Array, ""], following: Row) -> Row:
        """The TD error."""
        return reward + discount * following - row


@dataclass(frozen=True)
class Steps:
    """A schedule of constant pieces: `values[i]` until `ends[i]`, the last value for ever."""

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


class _Model(NamedTuple):
    """The process, the policy and the weights of Q, as arguments of the compiled programs."""

    outcome_ends: Float[Array, "s a ends"]
    next_states: Int[Array, "s a k"]
    rewards: Float[Array, "s a k"]
    laws: Int[Array, "s a k"]
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
    start, advance = _programs(_shared(learning), mdp.reward_laws)
    state = start(model, keys)
    records = learning.steps // learning.record_every
    kept = []
    for record in range(records):
        state = advance(model, state, keys)
        q = state.table @ model.weights
        kept.append(jax.tree.map(np.asarray, (q, state.table[:, mdp.start], state.counts, state.episodes)))
        tick((record + 1) / records)
    q, rows, counts, episodes = (np.stack(parts, axis=1) for parts in zip(*kept, strict=True))
    steps = learning.record_every * np.arange(1, records + 1)
    return History(steps, q, rows, counts, episodes, np.asarray(state.table))


def _model(mdp: TabularMDP, representation: Representation, policy: Policy | None) -> _Model:
    def ends(probs: Float[np.ndarray, "*batch k"]) -> Float[Array, "*batch ends"]:
        return jnp.asarray(np.cumsum(probs, -1)[..., :-1], jnp.float32)

    return _Model(
        ends(mdp.probs),
        jnp.asarray(mdp.next_states, jnp.int32),
        jnp.asarray(mdp.rewards, jnp.float32),
        jnp.asarray(mdp.laws, jnp.int32),
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
def _programs(learning: Learning, reward_laws: tuple[RewardLaw, ...]) -> tuple[Callable, Callable]:
    """The compiled start, and the compiled stretch between two records, of a batch of seeds.

    The process is an argument of both, so that they are compiled once for each shape.
    """
    begin, step = _build(learning, reward_laws)

    def stretch(model: _Model, state: _State, key: PRNGKeyArray) -> _State:
        draws = jax.random.uniform(jax.random.fold_in(key, state.step), (learning.record_every, 4))
        return jax.lax.scan(partial(step, model, key), state, draws)[0]

    return jax.jit(jax.vmap(begin, (None, 0))), jax.jit(jax.vmap(stretch, (None, 0, 0)), donate_argnums=1)


def _build(learning: Learning, reward_laws: tuple[RewardLaw, ...]) -> tuple[Callable, Callable]:
    representation = learning.representation

    def begin(model: _Model, key: PRNGKeyArray) -> _State:
        table_key, state_key = jax.random.split(jax.random.fold_in(key, 2**31 - 1))
        shape = model.next_states.shape
        zero = jnp.zeros((), jnp.int32)
        first = _index(model.first_ends, jax.random.uniform(state_key))
        table = representation.init(table_key, shape[:2])
        return _State(table, jnp.zeros(shape, jnp.int32), first, zero, zero, zero)

    def greedy(model: _Model, table: Float[Array, "s a d"], state: Int[Array, ""]) -> Int[Array, ""]:
        return jnp.argmax(table[state] @ model.weights).astype(jnp.int32)

    def act(model: _Model, now: _State, explore: Float[Array, ""], which: Float[Array, ""]) -> Int[Array, ""]:
        if model.policy_ends is not None:
            return _index(model.policy_ends[now.state], which)
        actions = model.next_states.shape[1]
        count = now.step if learning.epsilon_counts == "steps" else now.episodes
        random = jnp.minimum((which * actions).astype(jnp.int32), actions - 1)
        return jnp.where(explore < learning.epsilon(count), random, greedy(model, now.table, now.state))

    def draw_reward(key: PRNGKeyArray, law: Int[Array, ""]) -> Float[Array, ""]:
        branches = [lambda _: jnp.zeros(()), *(reward.draw for reward in reward_laws)]
        return jax.lax.switch(law + 1, branches, key)

    def step(model: _Model, key: PRNGKeyArray, now: _State, draws: Float[Array, "4"]) -> tuple[_State, None]:
        action = act(model, now, draws[0], draws[1])
        outcome = _index(model.outcome_ends[now.state, action], draws[2])
        place = (now.state, action, outcome)
        reward, following, ends = model.rewards[place], model.next_states[place], model.terminal[place]
        if reward_laws:
            reward = reward + draw_reward(jax.random.fold_in(jax.random.fold_in(key, 1), now.step), model.laws[place])
        if model.policy_ends is not None:
            next_action = _index(model.policy_ends[following], draws[3])
        else:
            next_action = greedy(model, now.table, following)
        row = now.table[now.state, action]
        discount = model.discount * (1 - ends.astype(jnp.float32))
        direction = representation.update(row, reward, discount, now.table[following, next_action])
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
        ), None

    return begin, step


def _index(ends: Float[Array, " k"], draw: Float[Array, ""]) -> Int[Array, ""]:
    """Which part of [0, 1) a draw falls into, the parts being given by their ends but the last."""
    return (draw >= ends).sum().astype(jnp.int32)
