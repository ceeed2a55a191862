"""How agents turn return distributions into numbers: Q for them, and figures for people."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from qemrl.distributional.representations import Categorical, FixedQuantiles, ImplicitQuantiles, Scalar
from qemrl.estimators import QEM, EmpiricalMean, Statistic, VarianceInputs, crossing_rate, r_squared
from qemrl.types import ReturnDist


class Weights(NamedTuple):
    """The weights that follow from evidence, where they have been computed before."""

    of_mean: Float[Array, " n"]


def estimate(
    estimator: Statistic, dist: ReturnDist, variance_inputs: VarianceInputs | Weights | None = None
) -> Float[Array, "*batch"]:
    """Q: the one place where a return distribution becomes a number; evidence is that of this very estimator."""
    if isinstance(variance_inputs, Weights):
        return jnp.matmul(dist.values, variance_inputs.of_mean, precision="highest")
    if isinstance(estimator, QEM):
        return estimator.mean(dist.values, dist.levels, dist.probs, variance_inputs)
    return estimator.mean(dist.values, dist.levels, dist.probs)


def check_compatible(estimator: Any, representation: Any) -> None:
    """Raise unless the estimator can be computed from what the representation holds."""
    if isinstance(estimator, EmpiricalMean):
        return
    name, kind = type(estimator).__name__, type(representation).__name__
    match representation:
        case Scalar():
            raise ValueError(f"{name} needs a return distribution, and {kind} has none; use EmpiricalMean with it")
        case Categorical() if isinstance(estimator, QEM):
            raise ValueError(f"QEM estimates Q from quantiles, and {kind} has none; use EmpiricalMean with it")
        case FixedQuantiles(num_quantiles=count):
            counts = {"num_quantiles": count}
        case ImplicitQuantiles(num_levels=own, num_target_levels=target, num_acting_levels=acting):
            counts = {"num_levels": own, "num_target_levels": target, "num_acting_levels": acting}
        case _:
            counts = {}
    for field, count in counts.items():
        if isinstance(estimator, QEM) and count < estimator.order:
            raise ValueError(f"QEM of order {estimator.order} needs at least as many quantiles, got {field}={count}")


def distribution_metrics(
    estimator: Statistic, representation: Any, dist: ReturnDist, variance_inputs: VarianceInputs | Weights | None = None
) -> dict[str, Float[Array, ""]]:
    """What the distributions look like: Q, and for quantiles how often they cross, R² of the QEM fit, QEM − mean."""
    numbers = {"dist/q": jnp.mean(estimate(estimator, dist, variance_inputs))}
    if isinstance(representation, FixedQuantiles | ImplicitQuantiles):
        count = dist.values.shape[-1]
        qem = estimator if isinstance(estimator, QEM) else QEM(order=min(4, count))
        numbers["dist/crossing_rate"] = (
            jnp.mean(crossing_rate(dist.values, dist.levels)) if count > 1 else jnp.zeros(())
        )
        numbers["dist/r_squared"] = jnp.mean(r_squared(qem.with_fixed_variance, dist.values, dist.levels))
        difference = estimate(qem, dist, variance_inputs) - EmpiricalMean().mean(dist.values, dist.levels)
        numbers["dist/qem_minus_mean"] = jnp.mean(difference)
        numbers["dist/std"] = jnp.mean(jnp.std(dist.values, axis=-1))
    return numbers
