"""What agents remember to estimate V from: the clock, counts, a slow copy of the network, moments of TD errors.

An agent remembers only what its estimator `needs`, so most remember nothing. It is kept with the parameters: whoever
acts or asks for Q has it, and checkpoints store it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qemrl.agents.estimates import Weights
from qemrl.distributional.residuals import residuals
from qemrl.estimators import QEM, Evidence, Statistic, midpoints
from qemrl.exploration.novelty import Counts, Novelty, place_of
from qemrl.representations import FixedQuantiles, ImplicitQuantiles
from qemrl.types import EnvSpec, ReturnDist

GRID = 32
"""At so many levels moments are kept where the levels of the quantiles change."""

MOMENTS_EVERY = 25
"""So many updates pass from one look at TD errors to the next, so that looking costs little."""

SHARED = {"step", "innovations", "curvature"}
"""Evidence that is the same in all states."""

MOMENTS_RATE = 0.01
"""The least weight of a look in the running moments; the first looks are averaged."""


class Beliefs(NamedTuple):
    """What is remembered; what is not needed is None."""

    step: Float[Array, ""] | None = None
    """Steps of the agent, up to the last update."""

    counts: Counts | None = None
    """How often actions were learned from in observations."""

    slow: Any = None
    """A slow copy of the network."""

    innovations: Float[Array, " n"] | Float[Array, "n n"] | None = None
    curvature: Float[Array, " n"] | None = None
    """At the quantiles' levels, or on the grid; averaged over all that was learned from."""

    weights: Float[Array, " n"] | None = None
    """The estimator's weights, where they are the same for all that is estimated until the next update."""


def needs_of(estimator: Statistic) -> tuple[str, ...]:
    """The fields of `Evidence` that the estimator looks at."""
    return estimator.needs if isinstance(estimator, QEM) else ()


def is_full(estimator: Statistic) -> bool:
    """Whether the estimator takes errors at different levels to be correlated."""
    return isinstance(estimator, QEM) and estimator.full


def begin(estimator: Statistic, representation: Any, spec: EnvSpec, slow: Any) -> Beliefs | None:
    """Nothing seen yet; `slow` is a copy of the network if one is needed."""
    needs = needs_of(estimator)
    if not needs and slow is None:
        return None
    innovations = curvature = None
    if "innovations" in needs:
        size = representation.num_quantiles if isinstance(representation, FixedQuantiles) else GRID
        innovations = jnp.eye(size) if is_full(estimator) else jnp.ones(size)
        curvature = jnp.ones(size)
    beliefs = Beliefs(
        jnp.zeros(()) if "step" in needs else None,
        Novelty().start(1, spec) if "visits" in needs else None,
        slow,
        innovations,
        curvature,
    )
    alike = bool(needs) and set(needs) <= SHARED and isinstance(representation, FixedQuantiles)
    return beliefs._replace(weights=_weights(estimator, representation.num_quantiles, beliefs)) if alike else beliefs


def _weights(estimator: Statistic, count: int, beliefs: Beliefs) -> Float[Array, " n"]:
    assert isinstance(estimator, QEM)
    evidence = Evidence(step=beliefs.step, innovations=beliefs.innovations, curvature=beliefs.curvature)
    levels = jnp.asarray(midpoints(count), jnp.float32)
    return estimator.weights(levels, None, evidence)[0]


def at_step(beliefs: Beliefs, estimator: Statistic, step: Float[Array, ""]) -> Beliefs:
    """With another time, if it matters."""
    if beliefs.step is None:
        return beliefs
    beliefs = beliefs._replace(step=step)
    if beliefs.weights is None:
        return beliefs
    return beliefs._replace(weights=_weights(estimator, beliefs.weights.shape[-1], beliefs))


def visits_of(beliefs: Beliefs | None, observation: Any) -> Float[Array, "batch actions"] | None:
    """How often each action was learned from in such observations."""
    if beliefs is None or beliefs.counts is None:
        return None
    return beliefs.counts.visits[place_of(beliefs.counts, observation)].astype(jnp.float32)


def evidence_of(
    beliefs: Beliefs | None,
    dist: ReturnDist,
    needs: tuple[str, ...],
    slow: Float[Array, "batch members ... n"] | None = None,
    visits: Float[Array, "batch actions"] | None = None,
) -> Evidence | Weights | None:
    """The evidence on the errors of distributions [batch, members, ..., n], or the weights that follow from it.

    The twin of a member is the one before it; the heads are all members.
    """
    if beliefs is None or not needs:
        return None
    if beliefs.weights is not None:
        return Weights(beliefs.weights)
    innovations, curvature = beliefs.innovations, beliefs.curvature
    if curvature is not None and (jnp.ndim(dist.levels) > 1 or curvature.shape[-1] != dist.values.shape[-1]):
        innovations, curvature = (_at(dist.levels, moments) for moments in (innovations, curvature))
    return Evidence(
        step=beliefs.step,
        visits=None if visits is None else visits[:, None],
        slow=slow,
        twin=jnp.roll(dist.values, 1, axis=1) if "twin" in needs else None,
        heads=jnp.moveaxis(dist.values, 1, -2)[:, None] if "heads" in needs else None,
        innovations=innovations,
        curvature=curvature,
    )


def _at(levels: Any, moments: Any) -> Float[Array, "*shared n"]:
    grid = jnp.asarray(midpoints(moments.shape[-1]), jnp.float32)
    return jnp.interp(jnp.asarray(levels, jnp.float32), grid, moments)


def count(beliefs: Beliefs, observation: Any, actions: Int[Array, " batch"]) -> Beliefs:
    """With these actions counted, if they are."""
    if beliefs.counts is None:
        return beliefs
    counts = beliefs.counts
    visits = counts.visits.at[place_of(counts, observation), actions].add(1)
    return beliefs._replace(counts=counts._replace(visits=visits))


def look(
    beliefs: Beliefs,
    estimator: Statistic,
    number: Int[Array, ""],
    kappa: float,
    predict: Callable[[], tuple[ReturnDist, ReturnDist]],
) -> Beliefs:
    """With a look at TD errors, if they are looked at and it is time.

    `predict` gives distributions [batch, members, n] and their targets; it is called in looks alone.
    """
    if beliefs.curvature is None:
        return beliefs

    def now() -> tuple[Array, Array, Array | None]:
        innovations, curvature = _moments(beliefs, number, *predict(), kappa)
        after = beliefs._replace(innovations=innovations, curvature=curvature)
        size = curvature.shape[-1]
        return innovations, curvature, None if beliefs.weights is None else _weights(estimator, size, after)

    kept = (beliefs.innovations, beliefs.curvature, beliefs.weights)
    innovations, curvature, weights = jax.lax.cond(number % MOMENTS_EVERY == 0, now, lambda: kept)
    return beliefs._replace(innovations=innovations, curvature=curvature, weights=weights)


def _moments(
    beliefs: Beliefs, number: Int[Array, ""], dist: ReturnDist, goal: ReturnDist, kappa: float
) -> tuple[Float[Array, "..."], Float[Array, " n"]]:
    """The moments after a look at the TD errors of distributions [batch, members, n] against their targets."""
    assert beliefs.innovations is not None
    assert beliefs.curvature is not None
    probs = None if goal.probs is None else jnp.broadcast_to(goal.probs, goal.values.shape)
    found = residuals(dist.values, jnp.asarray(dist.levels, jnp.float32), goal.values, probs, kappa)
    size = beliefs.curvature.shape[-1]
    if beliefs.innovations.ndim == 2:
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

        innovations = mean(found.innovations**2, beliefs.innovations)
        curvature = mean(found.curvature, beliefs.curvature)
    looks = (number // MOMENTS_EVERY).astype(jnp.float32)
    rate = jnp.maximum(MOMENTS_RATE, 1 / (looks + 1))
    return (
        beliefs.innovations + rate * (innovations - beliefs.innovations),
        beliefs.curvature + rate * (curvature - beliefs.curvature),
    )


def require_evidence(estimator: Any, representation: Any, members: int, numbered: bool) -> None:
    """Raise unless an agent with so many members can give what the estimator looks at."""
    needs, name = needs_of(estimator), type(getattr(estimator, "variance", None)).__name__
    if "visits" in needs and not numbered:
        raise ValueError(f"{name} counts numbered actions, and these are continuous; use another model of V")
    if "slow" in needs and not numbered:
        raise ValueError(f"{name} with source='slow': these agents have no slow copy that acts; use source='twin'")
    if members < 2 and ("twin" in needs or "heads" in needs):
        raise ValueError(
            f"{name} compares learners, and there is one; give FixedQuantiles num_heads (--representation.num-heads 2)"
        )
    if is_full(estimator) and "innovations" in needs and isinstance(representation, ImplicitQuantiles):
        raise ValueError(f"{name} keeps the covariance of fixed levels; with ImplicitQuantiles use full=False")
