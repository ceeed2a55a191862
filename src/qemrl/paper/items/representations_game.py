"""What agents with each representation know of the game that they play, against returns of playing on."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qemrl.agents.value import ValueAgent
from qemrl.estimators import crossing_rate
from qemrl.paper.agent_runs import look_every, train
from qemrl.paper.claims import Tick, scale_tick
from qemrl.paper.items.representations_learned import levels_of_rows
from qemrl.paper.items.return_variance_study import Player, Table, find_places, sample_greedy_returns
from qemrl.training.config import configure

GAME = "minatar/breakout"
SHARED = {"iqn"}
"""Presets whose levels a batch shares in the game, because that is several times as fast."""

WALK = 200
"""Steps of greedy play that states are drawn from."""

FLOOR = 0.01
"""The least standard deviation of the return that errors are divided by."""


class Played(NamedTuple):
    """What one agent knows of its own game, at states that it comes through."""

    crossing: float
    """The share of neighboring quantiles in the wrong order, of all actions."""
    q_bias: float
    """Q of the greedy action less the mean return of playing on, averaged over states, in standard deviations of the
    return."""
    quantile_bias: float
    """The same of quantiles, in absolute values of the mean over states at each level."""
    mean_return: float


def study_game(
    preset: str, steps: int, seeds: int, places: int, rollouts: int, seed: int, tick: Tick
) -> Iterator[Played]:
    """Train agents on a game, and let them play on from states that they come through."""
    overrides: dict[str, Any] = {"exploration.over_steps": max(1, steps // 4)}
    if preset in SHARED:
        overrides["representation.share_levels"] = True
    config = configure(preset, GAME, steps, seed, seeds, overrides=overrides)
    every = max(1, steps // 10 // config.schedule.steps) * config.schedule.steps
    run, _ = list(train(look_every(config, every, 1), False, scale_tick(tick, 0.0, 0.6)))[-1]
    for index in range(seeds):
        player = Player(run.agent, run.params(index), run.env, config.agent.discount)
        table = Table(player, places, rollouts)
        place_key, return_key = jax.random.split(jax.random.key(seed + index))
        found, distinct = find_places(table, place_key, WALK, np.random.default_rng(seed + index))
        part = scale_tick(tick, 0.6 + 0.4 * index / seeds, 0.4 / seeds)
        returns = sample_greedy_returns(table, found, return_key, part)[:distinct]
        yield _compare(player, found.observations[:distinct], returns)


def _compare(player: Player, observations: Array, returns: Float[np.ndarray, "k count"]) -> Played:
    agent = player.agent
    assert isinstance(agent, ValueAgent)

    @jax.jit
    def ask(observations: Array) -> tuple[Array, Array, Array, Array]:
        dist = agent.predict(player.params, observations, "report", None).dist
        actions, q = player.act(observations), agent.q_values(player.params, observations)
        values = jnp.take_along_axis(dist.values[:, 0], actions[:, None, None], axis=1)[:, 0]
        crossing = jnp.mean(crossing_rate(dist.values, jnp.asarray(dist.levels)))
        return jnp.max(q, axis=1), values, levels_of_rows(dist), crossing

    q, values, levels, crossing = (np.asarray(each, np.float64) for each in ask(observations))
    std = max(FLOOR, float(np.sqrt(returns.var(1).mean())))
    truth = np.stack([np.quantile(each, level) for each, level in zip(returns, levels, strict=True)])
    shifts = (values - truth).mean(0) / std
    q_bias = float((q - returns.mean(1)).mean()) / std
    return Played(float(crossing), q_bias, float(np.abs(shifts).mean()), float(returns.mean()))
