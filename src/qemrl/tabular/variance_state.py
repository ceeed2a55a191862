"""What tabular learning keeps for each state and action to estimate V from."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qemrl.distributional.losses import quantile_innovations
from qemrl.estimators.estimated_variance import VarianceInputs
from qemrl.estimators.estimator import QEM
from qemrl.estimators.levels import midpoints
from qemrl.tabular.representations import Quantiles


class VarianceState(NamedTuple):
    """What V is estimated from; what the estimator does not need is None."""

    ema: Float[Array, "*table d"] | None
    """Running means of the rows, over visits."""

    innovations: Float[Array, "*table n"] | Float[Array, "*table n n"] | None
    """Running means of the squares, or products, of what visits move quantiles by, over heads and visits."""

    curvature: Float[Array, "*table n"] | None
    """Running means of the density of the targets at the quantiles."""


def init_variance_state(representation: Quantiles, table: Float[Array, "s a d"]) -> VarianceState:
    """Nothing seen yet: moments say that all levels err alike."""
    needs, shape, count = representation.needs, table.shape[:2], representation.num_quantiles
    innovations = curvature = None
    if "innovations" in needs:
        same = jnp.eye(count) if _is_full(representation) else jnp.ones(count)
        innovations = jnp.broadcast_to(same, (*shape, *same.shape))
        curvature = jnp.ones((*shape, count))
    return VarianceState(jnp.copy(table) if "ema" in needs else None, innovations, curvature)


def _is_full(representation: Quantiles) -> bool:
    assert isinstance(representation.estimator, QEM)
    return representation.estimator.full


def variance_inputs_at(
    representation: Quantiles,
    variance_state: VarianceState,
    rows: Float[Array, "*batch d"],
    step: Int[Array, ""],
    visits: Int[Array, "*batch"],
    place: Any,
) -> VarianceInputs:
    """What V is estimated from, for rows that are those at a place of the table."""
    heads = representation.heads(rows)
    needs = representation.needs
    innovations = curvature = None
    if variance_state.innovations is not None and variance_state.curvature is not None:
        curvature = variance_state.curvature[place][..., None, :]
        innovations = jnp.expand_dims(variance_state.innovations[place], rows.ndim - 1)
    return VarianceInputs(
        step=step.astype(jnp.float32),
        visits=visits.astype(jnp.float32)[..., None],
        ema=None if variance_state.ema is None else representation.heads(variance_state.ema[place]),
        twin=jnp.roll(heads, 1, axis=-2) if "twin" in needs else None,
        heads=heads[..., None, :, :] if "heads" in needs else None,
        innovations=innovations,
        curvature=curvature,
    )


def update_variance_state(
    representation: Quantiles,
    variance_state: VarianceState,
    place: tuple[Int[Array, ""], Int[Array, ""]],
    row: Float[Array, " d"],
    targets: Float[Array, " d"],
    rate: Float[Array, ""],
) -> VarianceState:
    """The state after a visit."""
    ema, innovations, curvature = variance_state
    if ema is not None:
        ema = ema.at[place].add(rate * (row - ema[place]))
    if innovations is not None and curvature is not None:
        levels = jnp.asarray(midpoints(representation.num_quantiles), row.dtype)
        found = quantile_innovations(representation.heads(row), levels, representation.heads(targets), kappa=0.0)
        moved = found.innovations
        if _is_full(representation):
            products = jnp.mean(moved[:, :, None] * moved[:, None, :], axis=0)
        else:
            products = jnp.mean(moved * moved, axis=0)
        innovations = innovations.at[place].add(rate * (products - innovations[place]))
        curvature = curvature.at[place].add(rate * (jnp.mean(found.curvature, axis=0) - curvature[place]))
    return VarianceState(ema, innovations, curvature)
