"""What the return-variance item is made of: estimated and true standard deviations of returns.

Small processes have an exact truth. An agent's greedy policy is played over and over from stored states of its game.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from qemrl.agents.agent import InspectableAgent
from qemrl.agents.presets import make_agent
from qemrl.agents.value import ValueConfig
from qemrl.envs.jax.env import JaxEnv
from qemrl.envs.jax.registry import make_jax_env
from qemrl.estimators import QEM, EmpiricalMean, midpoints
from qemrl.exploration import EpsilonGreedy
from qemrl.paper.agent_runs import configure_item, look_every, train
from qemrl.paper.claims import Tick
from qemrl.tabular import Learning, Policy, TabularMDP, learn, policy_values
from qemrl.tabular.exact import action_probs
from qemrl.training.config import RunConfig
from qemrl.training.schedule import Keys

QUANTITIES = ("QEM", "QEM c₁", "plain", "DLTV", "DLTV ×4")
"""Standard deviations by Parseval, by the coefficient of the scale, of the quantiles themselves, and two of DLTV."""

NEGLIGIBLE = 1e-3
"""The discount γ^t from which on rewards of a rollout are left out."""

STRETCH = 500
"""Steps of rollouts between two checks of whether they are over."""


def estimate_stds(values: Float[np.ndarray, "*batch n"]) -> dict[str, Float[np.ndarray, "*batch"]]:
    """What each quantity makes of quantiles at midpoints, as a standard deviation.

    DLTV's variance tends to ½ E(Z − m)₊² with the median m. A symmetric distribution has E(Z − m)₊² = ½ Var(Z), and so
    DLTV has a quarter of the variance: ×4 repairs that, as a factor of two on the standard deviation.
    """
    values = np.asarray(values, np.float64)
    levels, qem = midpoints(values.shape[-1]), QEM(4)
    ordered = np.sort(values, axis=-1)
    median = ordered[..., (values.shape[-1] - 1) // 2, None]
    dltv = np.sqrt((np.maximum(ordered - median, 0) ** 2).mean(-1) / 2)
    found = (
        np.sqrt(qem.moments(values, levels).variance),
        np.abs(qem.coefficients(values, levels)[..., 1]),
        np.sqrt(EmpiricalMean().moments(values, levels).variance),
        dltv,
        2 * dltv,
    )
    return {name: np.asarray(std) for name, std in zip(QUANTITIES, found, strict=True)}


def return_variances(mdp: TabularMDP, policy: Policy) -> Float[np.ndarray, " s"]:
    """The variance of the return from each state, exactly.

    By the law of total variance Var(s) = E(R + γV(S′) − V(s))² + E γ²Var(S′), which is linear in Var.
    """
    choose = action_probs(mdp, policy)
    weights = choose[:, :, None] * mdp.probs
    values = (choose * policy_values(mdp, policy)).sum(-1)
    go_on = mdp.discount * ~mdp.terminal
    noise = np.array([each.distribution.std**2 for each in mdp.reward_distributions] + [0.0])[mdp.reward_index]
    surprise = mdp.mean_rewards + go_on * values[mdp.next_states] - values[:, None, None]
    system = np.eye(mdp.num_states)
    s, _, _ = np.indices(weights.shape)
    np.add.at(system, (s, mdp.next_states), -weights * go_on**2)
    return np.linalg.solve(system, (weights * (surprise**2 + noise)).sum((1, 2)))


def learn_quantiles(
    mdp: TabularMDP,
    policy: Int[np.ndarray, " s"],
    learning: Learning,
    seeds: Int[np.ndarray, " seeds"],
    tick: Tick,
) -> Float[np.ndarray, "seeds s n"]:
    """The quantiles of every state that quantile TD learns for a policy."""
    table = learn(mdp, learning, seeds, policy, tick).table
    return table[:, np.arange(mdp.num_states), policy].astype(np.float64)


class Player(NamedTuple):
    """An agent that plays greedily."""

    agent: InspectableAgent
    params: Any
    env: JaxEnv
    discount: float

    def act(self, observations: Array) -> Int[Array, " games"]:
        return self.agent.greedy_action(self.params, observations, None, None)


def configure_agent(env: str, steps: int, seed: int) -> RunConfig:
    """The run of QR-DQN's preset, its ε falling over the same share of the run as in a million steps."""
    config = configure_item("qr-dqn", env, max(1, steps), seed)
    assert isinstance(config.agent, ValueConfig)
    assert isinstance(config.agent.exploration, EpsilonGreedy)
    exploration = replace(config.agent.exploration, over_steps=max(1, steps // 4))
    every = max(1, steps // 20 // config.schedule.steps) * config.schedule.steps
    agent = replace(config.agent, exploration=exploration)
    return look_every(replace(config, agent=agent), every, config.evaluation_episodes)


def train_player(config: RunConfig, learns: bool, tick: Tick) -> Player:
    """The agent of a run after its training, or before it."""
    env = make_jax_env(config.env)
    if not learns:
        agent = make_agent(config.agent, env.spec)
        return Player(agent, jax.jit(agent.init)(Keys.from_seed(config.seed).init).params, env, config.agent.discount)
    run, _ = list(train(config, False, tick))[-1]
    return Player(run.agent, run.params(0), env, config.agent.discount)


class Places(NamedTuple):
    """States of a game, and what is seen there."""

    states: Any
    observations: Array


class Rollouts(NamedTuple):
    """A game in progress from each place, and the returns of those that are over."""

    now: Places
    factor: Float[Array, " places"]
    """γ^t, t being the number of steps since the place."""
    total: Float[Array, " places"]
    number: Int[Array, " places"]
    """How many games are over."""
    returns: Float[Array, "places count"]
    steps: Int[Array, ""]


class Table:
    """Games of the greedy policy side by side, each from its place again and again; compiled once."""

    def __init__(self, player: Player, games: int, count: int) -> None:
        self.player, self.games, self.count = player, games, count
        self.advance = jax.jit(self._advance)

    def start(self, places: Places) -> Rollouts:
        """No game has started."""
        zeros, number = jnp.zeros(self.games, jnp.float32), jnp.zeros(self.games, jnp.int32)
        return Rollouts(
            places, zeros + 1, zeros, number, jnp.zeros((self.games, self.count), jnp.float32), jnp.int32(0)
        )

    def _advance(self, places: Places, rollouts: Rollouts, key: PRNGKeyArray, steps: Int[Array, ""]) -> Rollouts:
        """Play on for some steps. A game ends where it terminates or γ^t is negligible; a time limit ends nothing."""

        def step(_: Int[Array, ""], past: Rollouts) -> Rollouts:
            keys = jax.random.split(jax.random.fold_in(key, past.steps), self.games)
            actions = self.player.act(past.now.observations)
            outcome = jax.vmap(self.player.env.step)(past.now.states, actions, keys)
            total = past.total + past.factor * outcome.reward
            factor = past.factor * jnp.float32(self.player.discount)
            over = outcome.terminated | (factor < jnp.float32(NEGLIGIBLE))
            # A game that is not over writes its return so far, and later steps write over it.
            returns = past.returns.at[jnp.arange(self.games), past.number].set(total, mode="drop")
            return Rollouts(
                select_places(over, places, Places(outcome.state, outcome.observation)),
                jnp.where(over, jnp.float32(1), factor),
                jnp.where(over, jnp.float32(0), total),
                past.number + over.astype(jnp.int32),
                returns,
                past.steps + 1,
            )

        return jax.lax.fori_loop(jnp.int32(0), steps, step, rollouts)


def select_places(which: Bool[Array, " games"], first: Places, second: Places) -> Places:
    """The first places where `which` is true, else the second."""
    return jax.tree.map(lambda a, b: jnp.where(which.reshape(-1, *(1,) * (a.ndim - 1)), a, b), first, second)


def find_places(table: Table, key: PRNGKeyArray, steps: int, rng: np.random.Generator) -> tuple[Places, int]:
    """As many states as the table has games, drawn from all that look different in some steps of greedy play.

    Where there are fewer such states they are repeated in order; their number comes second.
    """
    reset_key, play_key = jax.random.split(key)
    start = Places(*jax.jit(jax.vmap(table.player.env.reset))(jax.random.split(reset_key, table.games)))
    rollouts, passed = table.start(start), []
    for _ in range(steps):
        rollouts = table.advance(start, rollouts, play_key, jnp.int32(1))
        passed.append(jax.device_get(rollouts.now))
    seen = jax.tree.map(lambda *leaves: np.concatenate(leaves), *passed)
    _, first = np.unique(seen.observations.reshape(table.games * steps, -1), axis=0, return_index=True)
    picks = rng.permutation(first)[: table.games]
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[np.resize(picks, table.games)]), seen), len(picks)


def sample_greedy_returns(
    table: Table, places: Places, key: PRNGKeyArray, tick: Tick
) -> Float[np.ndarray, "places count"]:
    """Discounted returns of the greedy policy from each place, as many as the table counts.

    Each place plays one game after the other, so that none waits for the longest, and stops at a number of games, so
    that short ones are not preferred.
    """
    rollouts, done = table.start(places), 0.0
    while done < 1:
        rollouts = table.advance(places, rollouts, key, jnp.int32(STRETCH))
        done = float(np.minimum(np.asarray(rollouts.number), table.count).mean() / table.count)
        tick(done)
    return np.asarray(rollouts.returns, np.float64)


def greedy_quantiles(player: Player, observations: Array) -> Float[np.ndarray, "places n"]:
    """The quantiles of the greedy action."""
    ask = jax.jit(lambda seen: player.agent.predict_distribution(player.params, seen, player.act(seen)).values)
    return np.asarray(ask(observations)[:, 0, 0], np.float64)


def log_std_error(returns: Float[np.ndarray, "places count"]) -> Float[np.ndarray, " places"]:
    """The standard error of the logarithm of each sample standard deviation, by the delta method: √((κ − 1) / 4n)."""
    centered = returns - returns.mean(-1, keepdims=True)
    second = np.maximum((centered**2).mean(-1), 1e-12)
    kurtosis = (centered**4).mean(-1) / second**2
    return np.sqrt(np.maximum(kurtosis - 1, 0) / (4 * returns.shape[-1]))
