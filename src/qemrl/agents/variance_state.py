"""What agents remember to estimate V from: the clock, counts, a EMA network, moments of TD errors.

An agent remembers only what its estimator `needs`, so most remember nothing. It is kept with the parameters: whoever
acts or asks for Q has it, and checkpoints store it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qemrl.agents.estimates import Weights
from qemrl.distributional.representations import FixedQuantiles, ImplicitQuantiles
from qemrl.distributional.residuals import residuals
from qemrl.estimators import QEM, Statistic, VarianceInputs, midpoints
from qemrl.exploration.counts import CountBonus, Counts, state_index
from qemrl.types import EnvSpec, ReturnDist

GRID = 32
"""At so many levels moments are kept where the levels of the quantiles change."""

MOMENTS_EVERY = 25
"""So many updates pass from one look at TD errors to the next, so that looking costs little."""

SHARED = {"step", "innovations", "curvature"}
"""VarianceInputs that is the same in all states."""

MOMENTS_RATE = 0.01
"""The least weight of a look in the running moments; the first looks are averaged."""


class VarianceState(NamedTuple):
    """What is remembered; what is not needed is None."""

    step: Float[Array, ""] | None = None
    """Steps of the agent, up to the last update."""

    counts: Counts | None = None
    """How often actions were learned from in observations."""

    slow: Any = None
    """A EMA network."""

    innovations: Float[Array, " n"] | Float[Array, "n n"] | None = None
    curvature: Float[Array, " n"] | None = None
    """At the quantiles' levels, or on the grid; averaged over all that was learned from."""

    weights: Float[Array, " n"] | None = None
    """The estimator's weights, where they are the same for all that is estimated until the next update."""


def needs_of(estimator: Statistic) -> tuple[str, ...]:
    """The fields of `VarianceInputs` that the estimator looks at."""
    return estimator.needs if isinstance(estimator, QEM) else ()


def is_full(estimator: Statistic) -> bool:
    """Whether the estimator takes errors at different levels to be correlated."""
    return isinstance(estimator, QEM) and estimator.full


def begin(estimator: Statistic, representation: Any, spec: EnvSpec, slow: Any) -> VarianceState | None:
    """Nothing seen yet; `slow` is a copy of the network if one is needed."""
    needs = needs_of(estimator)
    if not needs and slow is None:
        return None
    innovations = curvature = None
    if "innovations" in needs:
        size = representation.num_quantiles if isinstance(representation, FixedQuantiles) else GRID
        innovations = jnp.eye(size) if is_full(estimator) else jnp.ones(size)
        curvature = jnp.ones(size)
    variance_state = VarianceState(
        jnp.zeros(()) if "step" in needs else None,
        CountBonus().start(1, spec) if "visits" in needs else None,
        slow,
        innovations,
        curvature,
    )
    alike = bool(needs) and set(needs) <= SHARED and isinstance(representation, FixedQuantiles)
    return (
        variance_state._replace(weights=_weights(estimator, representation.num_quantiles, variance_state))
        if alike
        else variance_state
    )


def _weights(estimator: Statistic, count: int, variance_state: VarianceState) -> Float[Array, " n"]:
    assert isinstance(estimator, QEM)
    variance_inputs = VarianceInputs(
        step=variance_state.step, innovations=variance_state.innovations, curvature=variance_state.curvature
    )
    levels = jnp.asarray(midpoints(count), jnp.float32)
    return estimator.weights(levels, None, variance_inputs)[0]


def at_step(variance_state: VarianceState, estimator: Statistic, step: Float[Array, ""]) -> VarianceState:
    """With another time, if it matters."""
    if variance_state.step is None:
        return variance_state
    variance_state = variance_state._replace(step=step)
    if variance_state.weights is None:
        return variance_state
    return variance_state._replace(weights=_weights(estimator, variance_state.weights.shape[-1], variance_state))


def lookup_visits(variance_state: VarianceState | None, observation: Any) -> Float[Array, "batch actions"] | None:
    """How often each action was learned from in such observations."""
    if variance_state is None or variance_state.counts is None:
        return None
    return variance_state.counts.visits[state_index(variance_state.counts, observation)].astype(jnp.float32)


def evidence_of(
    variance_state: VarianceState | None,
    dist: ReturnDist,
    needs: tuple[str, ...],
    slow: Float[Array, "batch members ... n"] | None = None,
    visits: Float[Array, "batch actions"] | None = None,
) -> VarianceInputs | Weights | None:
    """The evidence on the errors of distributions [batch, members, ..., n], or the weights that follow from it.

    The twin of a member is the one before it; the heads are all members.
    """
    if variance_state is None or not needs:
        return None
    if variance_state.weights is not None:
        return Weights(variance_state.weights)
    innovations, curvature = variance_state.innovations, variance_state.curvature
    if curvature is not None and (jnp.ndim(dist.levels) > 1 or curvature.shape[-1] != dist.values.shape[-1]):
        innovations, curvature = (_at(dist.levels, moments) for moments in (innovations, curvature))
    return VarianceInputs(
        step=variance_state.step,
        visits=None if visits is None else visits[:, None],
        ema=slow,
        twin=jnp.roll(dist.values, 1, axis=1) if "twin" in needs else None,
        heads=jnp.moveaxis(dist.values, 1, -2)[:, None] if "heads" in needs else None,
        innovations=innovations,
        curvature=curvature,
    )


def _at(levels: Any, moments: Any) -> Float[Array, "*shared n"]:
    grid = jnp.asarray(midpoints(moments.shape[-1]), jnp.float32)
    return jnp.interp(jnp.asarray(levels, jnp.float32), grid, moments)


def count(variance_state: VarianceState, observation: Any, actions: Int[Array, " batch"]) -> VarianceState:
    """With these actions counted, if they are."""
    if variance_state.counts is None:
        return variance_state
    counts = variance_state.counts
    visits = counts.visits.at[state_index(counts, observation), actions].add(1)
    return variance_state._replace(counts=counts._replace(visits=visits))


def look(
    variance_state: VarianceState,
    estimator: Statistic,
    number: Int[Array, ""],
    kappa: float,
    predict: Callable[[], tuple[ReturnDist, ReturnDist]],
) -> VarianceState:
    """With a look at TD errors, if they are looked at and it is time.

    `predict` gives distributions [batch, members, n] and their targets; it is called in looks alone.
    """
    if variance_state.curvature is None:
        return variance_state

    def now() -> tuple[Array, Array, Array | None]:
        innovations, curvature = _moments(variance_state, number, *predict(), kappa)
        after = variance_state._replace(innovations=innovations, curvature=curvature)
        size = curvature.shape[-1]
        return innovations, curvature, None if variance_state.weights is None else _weights(estimator, size, after)

    kept = (variance_state.innovations, variance_state.curvature, variance_state.weights)
    innovations, curvature, weights = jax.lax.cond(number % MOMENTS_EVERY == 0, now, lambda: kept)
    return variance_state._replace(innovations=innovations, curvature=curvature, weights=weights)


def _moments(
    variance_state: VarianceState, number: Int[Array, ""], dist: ReturnDist, goal: ReturnDist, kappa: float
) -> tuple[Float[Array, "..."], Float[Array, " n"]]:
    """The moments after a look at the TD errors of distributions [batch, members, n] against their targets."""
    assert variance_state.innovations is not None
    assert variance_state.curvature is not None
    probs = None if goal.probs is None else jnp.broadcast_to(goal.probs, goal.values.shape)
    found = residuals(dist.values, jnp.asarray(dist.levels, jnp.float32), goal.values, probs, kappa)
    size = variance_state.curvature.shape[-1]
    if variance_state.innovations.ndim == 2:
        products = jnp.einsum("bmi,bmj->ij", found.innovations, found.innovations)
        innovations = products / (found.innovations.shape[0] * found.innovations.shape[1])
        curvature = jnp.mean(found.curvature, axis=(0, 1))
    elif jnp.ndim(dist.levels) == 1:
        innovations, curvature = (jnp.mean(each, axis=(0, 1)) for each in (found.innovations**2, found.curvature))
    else:
        places = jnp.clip((dist.levels * size).astype(jnp.int32), 0, size - 1)
        places = jnp.broadcast_to(places, dist.values.shape).ravel()
        seen = jnp.zeros(size).at[places].add(1.0)

        def mean(each: Float[Array, "batch members n"], old: Float[Array, " grid"]) -> Float[Array, " grid"]:
            sums = jnp.zeros(size).at[places].add(each.ravel())
            return jnp.where(seen > 0, sums / jnp.maximum(seen, 1.0), old)

        innovations = mean(found.innovations**2, variance_state.innovations)
        curvature = mean(found.curvature, variance_state.curvature)
    looks = (number // MOMENTS_EVERY).astype(jnp.float32)
    rate = jnp.maximum(MOMENTS_RATE, 1 / (looks + 1))
    return (
        variance_state.innovations + rate * (innovations - variance_state.innovations),
        variance_state.curvature + rate * (curvature - variance_state.curvature),
    )


def check_variance_inputs(estimator: Any, representation: Any, members: int, discrete: bool) -> None:
    """Raise unless an agent with so many members can give what the estimator looks at."""
    needs, name = needs_of(estimator), type(getattr(estimator, "variance", None)).__name__
    if "visits" in needs and not discrete:
        raise ValueError(f"{name} counts discrete actions, and these are continuous; use another model of V")
    if "ema" in needs and not discrete:
        raise ValueError(f"{name} with source='ema': these agents have no EMA network that acts; use source='twin'")
    if members < 2 and ("twin" in needs or "heads" in needs):
        raise ValueError(
            f"{name} compares learners, and there is one; give FixedQuantiles num_heads (--representation.num-heads 2)"
        )
    if is_full(estimator) and "innovations" in needs and isinstance(representation, ImplicitQuantiles):
        raise ValueError(f"{name} keeps the covariance of fixed levels; with ImplicitQuantiles use full=False")
