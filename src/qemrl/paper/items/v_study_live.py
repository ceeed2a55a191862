"""Errors of estimators while quantiles are learned: quantile regression with a constant step, one return at a time.

A learner sees every return of its chain. Beside it run what V can be estimated from and what rivals average: four
learners that see a random half of the returns, an EMA network, running moments of the TD errors, and ten snapshots.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from qemrl.distributional.losses import quantile_innovations
from qemrl.estimators import (
    QEM,
    CountedVariance,
    DecayingVariance,
    Distribution,
    EmpiricalMean,
    HeadsVariance,
    ResidualVariance,
    SparsityVariance,
    TailVariance,
    VarianceInputs,
    midpoints,
)
from qemrl.paper.claims import Tick
from qemrl.paper.items.v_study_exact import Arm

COUNT, STEP, RATE = 32, 0.05, 5e-4
"""Quantiles; the step, in standard deviations; the rate of the EMA network and of the moments."""

HEADS, SNAPSHOTS, SNAPSHOT_EVERY = 4, 10, 200
TABLE = 16_384
"""The number of quantiles of a distribution that returns are drawn from."""

SIZES = {"smoke": (20, 600, 2), "small": (100, 4_000, 3), "paper": (400, 8_000, 5)}
"""Chains; steps before the first record, and half the steps between records; records."""


class Chain(NamedTuple):
    """What is learned from one stream of returns."""

    values: Float[Array, " n"]
    heads: Float[Array, "heads n"]
    ema: Float[Array, " n"]
    innovations: Float[Array, "n n"]
    curvature: Float[Array, " n"]
    snapshots: Float[Array, "snapshots n"]


def live_arms() -> dict[str, Arm]:
    """Estimators and rivals; all V with order 4 in Hermite polynomials, as in the paper."""
    arms = {"mean": Arm(EmpiricalMean()), "H4 I": Arm(QEM())}
    arms["H4 tail 1.5"] = Arm(QEM(variance=TailVariance(1.5)), "tail 1.5")
    arms["H4 decay"] = Arm(QEM(variance=DecayingVariance(over_steps=1_000)), "decay")
    arms["H4 counts"] = Arm(QEM(variance=CountedVariance()), "counts")
    for name, full in (("", False), (", GLS", True)):
        arms[f"H4 slope of EMA network{name}"] = Arm(QEM(variance=SparsityVariance(1, full=full)), f"slope{name}")
        arms[f"H4 slope² of EMA network{name}"] = Arm(QEM(variance=SparsityVariance(2, full=full)), f"slope²{name}")
        twin = SparsityVariance(1, source="twin", full=full)
        arms[f"H4 slope of twin{name}"] = Arm(QEM(variance=twin), f"slope of twin{name}")
        arms[f"H4 heads{name}"] = Arm(QEM(variance=HeadsVariance(full=full)), f"heads{name}")
        arms[f"H4 TD residuals{name}"] = Arm(QEM(variance=ResidualVariance(full=full)), f"TD residuals{name}")
    arms["H4 slope of itself"] = Arm(QEM(variance=SparsityVariance(1)), "slope of itself")
    for averaging in ("EMA network", "heads", "snapshots"):
        arms[f"mean, {averaging}"] = Arm(EmpiricalMean(), averaging=averaging)
    arms["H4 I, EMA network"] = Arm(QEM(), averaging="EMA network")
    return arms


def live_errors(distribution: Distribution, scale: str, seed: int, tick: Tick) -> dict[str, Float[np.ndarray, "c t"]]:
    """Estimate less truth, for each chain and record, by arm."""
    chains, pause, looks = SIZES[scale]
    keys = jax.random.split(jax.random.key(seed), chains)
    table = jnp.asarray(distribution.quantile(midpoints(TABLE)), jnp.float32)
    first = jnp.asarray(distribution.quantile(midpoints(COUNT)), jnp.float32)
    state = _start(first, chains)
    found: dict[str, list[np.ndarray]] = {name: [] for name in live_arms()}
    for look in range(looks):
        steps = pause if look == 0 else pause // 2
        state = _advance(steps)(table, state, jax.vmap(jax.random.fold_in, (0, None))(keys, look))
        total = pause + look * (pause // 2)
        numbers = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), state)
        for name, arm in live_arms().items():
            found[name].append(_estimate(name, arm, numbers, total) - distribution.mean)
        tick((look + 1) / looks)
    return {name: np.stack(errors, axis=1) for name, errors in found.items()}


def _start(first: Float[Array, " n"], chains: int) -> Chain:
    chain = Chain(
        first,
        jnp.tile(first, (HEADS, 1)),
        first,
        jnp.eye(COUNT),
        jnp.ones(COUNT),
        jnp.tile(first, (SNAPSHOTS, 1)),
    )
    return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], chains, axis=0), chain)


@lru_cache(maxsize=8)
def _advance(steps: int) -> Callable[..., Chain]:
    """A compiled stretch of learning of all chains."""

    def stretch(table: Float[Array, " m"], chain: Chain, key: PRNGKeyArray) -> Chain:
        draw_key, mask_key = jax.random.split(key)
        returns = table[jax.random.randint(draw_key, (steps,), 0, TABLE)]
        masks = jax.random.bernoulli(mask_key, shape=(steps, HEADS))
        numbers = jnp.arange(steps)
        return jax.lax.scan(_learn, chain, (numbers, returns, masks))[0]

    return jax.jit(jax.vmap(stretch, (None, 0, 0)))


def _learn(chain: Chain, seen: tuple[Array, Array, Array]) -> tuple[Chain, None]:
    number, reward, mask = seen
    levels = jnp.asarray(midpoints(COUNT), jnp.float32)
    found = quantile_innovations(chain.values, levels, reward[None], kappa=0.0)
    products = found.innovations[:, None] * found.innovations[None, :]
    directions = levels[None, :] - (reward < chain.heads).astype(jnp.float32)
    snapshots = jax.lax.cond(
        number % SNAPSHOT_EVERY == 0,
        lambda: jnp.concatenate([chain.values[None], chain.snapshots[:-1]]),
        lambda: chain.snapshots,
    )
    return Chain(
        chain.values + STEP * found.innovations,
        chain.heads + jnp.where(mask[:, None], STEP * directions, 0.0),
        chain.ema + RATE * (chain.values - chain.ema),
        chain.innovations + RATE * (products - chain.innovations),
        chain.curvature + RATE * (found.curvature - chain.curvature),
        snapshots,
    ), None


def _estimate(name: str, arm: Arm, chain: Chain, step: int) -> Float[np.ndarray, " chains"]:
    """The estimates of all chains."""
    values = {
        "none": chain.values,
        "EMA network": chain.ema,
        "heads": chain.heads.mean(1),
        "snapshots": chain.snapshots.mean(1),
    }[arm.averaging]
    if not isinstance(arm.estimator, QEM) or not arm.estimator.needs:
        return arm.estimator.mean(values, midpoints(COUNT))
    products = chain.innovations if arm.estimator.full else np.einsum("cii->ci", chain.innovations)
    variance_inputs = VarianceInputs(
        step=step,
        visits=np.full(len(values), float(step)),
        ema=chain.values if name == "H4 slope of itself" else chain.ema,
        twin=chain.heads[:, 0],
        heads=chain.heads,
        innovations=products,
        curvature=chain.curvature,
    )
    return arm.estimator.mean(values, midpoints(COUNT), None, variance_inputs)
