"""How an agent's return distributions become Q, and what it remembers to estimate V from.

`QEstimator` is the one place where a return distribution becomes a number. Most estimators need the distribution
alone, and then there is no state. QEM with an estimated V also needs the fields that its `needs` name: the step, visit
counts, an EMA of the network, moments of TD errors. That is a `VarianceState`, which agents keep with their parameters
and hand back without looking into it: whoever acts or asks for Q has it, and checkpoints store it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qemrl.agents.target_networks import EMA_RATE, polyak_update
from qemrl.distributional.losses import quantile_innovations
from qemrl.distributional.representation import Representation, check_compatible
from qemrl.estimators import QEM, EmpiricalMean, Statistic, VarianceInputs, crossing_rate, midpoints, r_squared
from qemrl.exploration.counts import CountBonus, Counts, count_visits, lookup_visits
from qemrl.types import Batch, EnvSpec, ReturnDist

GRID = 32
"""The number of levels at which moments are kept where the levels of the quantiles vary."""

MOMENTS_EVERY = 25
"""The number of updates between two updates of the moments of TD errors, so that they cost little."""

MOMENTS_RATE = 0.01
"""The smallest weight of new moments in the running ones; the first are averaged."""

SHARED_INPUTS = {"step", "innovations", "curvature"}
"""Inputs to V that are the same in all states."""


class VarianceState(NamedTuple):
    """What V is estimated from; what is not needed is None."""

    step: Float[Array, ""] | None = None
    """Steps of the agent, up to the last update."""

    counts: Counts | None = None
    """How often actions were learned from in observations."""

    ema: Any = None
    """An exponential moving average of the network."""

    innovations: Float[Array, " n"] | Float[Array, "n n"] | None = None
    curvature: Float[Array, " n"] | None = None
    """At the quantiles' levels, or on the grid; averaged over all transitions learned from."""

    weights: Float[Array, " n"] | None = None
    """The weights of the mean, where they are the same for all that is estimated until the next update."""


class Prediction(NamedTuple):
    """A return distribution with what is needed to predict it again, by another network."""

    dist: ReturnDist
    """[batch, members, ..., n]."""

    observation: Any = None
    by_network: Callable[[Any], ReturnDist] | None = None
    """The distribution that a network predicts there, at the same levels; None where there is no other network."""


@dataclass(frozen=True)
class QEstimator:
    """Q from return distributions: the estimator, and the state that its V is estimated from, if it is."""

    estimator: Statistic
    representation: Representation

    def init(self, spec: EnvSpec, network: Any) -> VarianceState | None:
        """The state before the first update; None where the estimator needs none."""
        needs = self.estimator.needs
        if not needs:
            return None
        innovations = curvature = None
        if "innovations" in needs:
            size = self.representation.fixed_quantiles or GRID
            innovations = jnp.eye(size) if self._qem.full else jnp.ones(size)
            curvature = jnp.ones(size)
        state = VarianceState(
            jnp.zeros(()) if "step" in needs else None,
            CountBonus().init(1, spec) if "visits" in needs else None,
            jax.tree.map(jnp.copy, network) if "ema" in needs else None,
            innovations,
            curvature,
        )
        return self._with_weights(state, set(needs) <= SHARED_INPUTS)

    def __call__(self, prediction: Prediction, state: VarianceState | None) -> Float[Array, "*batch"]:
        """Q: the one place where a return distribution becomes a number."""
        dist = self.representation.convert(prediction.dist, self.estimator.requires)
        if state is None:
            return self.estimator.mean(*dist)
        if state.weights is not None:
            return jnp.matmul(dist.values, state.weights, precision="highest")
        return self._qem.mean(*dist, self._inputs(dist, prediction, state))

    def update(
        self,
        state: VarianceState | None,
        batch: Batch,
        network: Any,
        updates: Int[Array, ""],
        step: Float[Array, ""],
        predict: Callable[[], tuple[ReturnDist, ReturnDist]],
    ) -> VarianceState | None:
        """The state after an update.

        Args:
            state: The state before it.
            batch: What was learned from.
            network: The network after the update.
            updates: How many updates there were before.
            step: How many steps the agent has done.
            predict: Distributions [batch, members, n] before the update and their targets; it is called only when
                moments are updated.
        """
        if state is None:
            return None
        if state.counts is not None:
            state = state._replace(counts=count_visits(state.counts, batch.observation, batch.action))
        if state.curvature is not None:
            state = self._update_moments(state, updates, predict)
        if state.step is not None:
            state = self._with_weights(state._replace(step=step), state.weights is not None)
        if state.ema is not None:
            state = state._replace(ema=polyak_update(state.ema, network, EMA_RATE))
        return state

    def metrics(self, prediction: Prediction, state: VarianceState | None) -> dict[str, Float[Array, ""]]:
        """What distributions look like: Q, and for quantiles how often they cross, R² of the QEM fit, QEM − mean.

        And of several members, how far their Q are apart.
        """
        dist = prediction.dist
        q = self(prediction, state)
        metrics = {"dist/q": jnp.mean(q)}
        if q.shape[1] > 1:
            metrics["dist/member_std"] = jnp.mean(jnp.std(q, axis=1))
        if self.representation.content != "quantiles":
            return metrics
        count = dist.values.shape[-1]
        qem = self._qem if self.estimator.requires == "quantiles" else QEM(order=min(4, count))
        crossing = jnp.mean(crossing_rate(dist.values, dist.levels)) if count > 1 else jnp.zeros(())
        estimates = q if qem is self.estimator else qem.mean(*dist)
        return metrics | {
            "dist/crossing_rate": crossing,
            "dist/r_squared": jnp.mean(r_squared(qem.with_fixed_variance, *dist)),
            "dist/qem_minus_mean": jnp.mean(estimates - EmpiricalMean().mean(*dist)),
            "dist/std": jnp.mean(jnp.std(dist.values, axis=-1)),
        }

    @property
    def _qem(self) -> QEM:
        return cast("QEM", self.estimator)  # what asks for quantiles, and needs more than the distribution, is QEM

    def _inputs(self, dist: ReturnDist, prediction: Prediction, state: VarianceState) -> VarianceInputs:
        """What V of converted quantiles is estimated from; the twin of a member is the one before it, heads are all."""
        needs, ema = self.estimator.needs, None
        if "ema" in needs:
            assert prediction.by_network is not None
            ema = self.representation.convert(prediction.by_network(state.ema), "quantiles").values
        visits = None
        if state.counts is not None:
            visits = lookup_visits(state.counts, prediction.observation).astype(jnp.float32)[:, None]
        innovations, curvature = state.innovations, state.curvature
        if curvature is not None and (jnp.ndim(dist.levels) > 1 or curvature.shape[-1] != dist.values.shape[-1]):
            innovations, curvature = (_interpolate(dist.levels, moments) for moments in (innovations, curvature))
        inputs = VarianceInputs(
            step=state.step,
            visits=visits,
            ema=ema,
            twin=jnp.roll(dist.values, 1, axis=1) if "twin" in needs else None,
            heads=jnp.moveaxis(dist.values, 1, -2)[:, None] if "heads" in needs else None,
            innovations=innovations,
            curvature=curvature,
        )
        return jax.lax.stop_gradient(inputs)  # V is given: a policy maximizes the estimate, not through its weights

    def _with_weights(self, state: VarianceState, shared: bool) -> VarianceState:
        """With the weights of the mean, where V is shared by all states and levels are fixed."""
        count = self.representation.fixed_quantiles
        if not shared or count is None:
            return state
        inputs = VarianceInputs(step=state.step, innovations=state.innovations, curvature=state.curvature)
        levels = jnp.asarray(midpoints(count), jnp.float32)
        return state._replace(weights=self._qem.weights(levels, None, inputs)[0])

    def _update_moments(
        self, state: VarianceState, updates: Int[Array, ""], predict: Callable[[], tuple[ReturnDist, ReturnDist]]
    ) -> VarianceState:
        assert state.innovations is not None
        assert state.curvature is not None
        innovations_before, curvature_before = state.innovations, state.curvature

        def update() -> VarianceState:
            innovations, curvature = self._measure_moments(state, *predict())
            number = (updates // MOMENTS_EVERY).astype(jnp.float32)
            rate = jnp.maximum(MOMENTS_RATE, 1 / (number + 1))
            after = state._replace(
                innovations=innovations_before + rate * (innovations - innovations_before),
                curvature=curvature_before + rate * (curvature - curvature_before),
            )
            return self._with_weights(after, state.weights is not None)

        return jax.lax.cond(updates % MOMENTS_EVERY == 0, update, lambda: state)

    def _measure_moments(
        self, state: VarianceState, dist: ReturnDist, target: ReturnDist
    ) -> tuple[Float[Array, "..."], Float[Array, " n"]]:
        """The moments of the TD errors of distributions [batch, members, n] against their targets."""
        assert state.innovations is not None
        assert state.curvature is not None
        kappa: float = getattr(self.representation, "kappa")  # noqa: B009 - quantiles are learned with one
        probs = None if target.probs is None else jnp.broadcast_to(target.probs, target.values.shape)
        levels = jnp.asarray(dist.levels, jnp.float32)
        innovations, curvature = quantile_innovations(dist.values, levels, target.values, probs, kappa)
        if state.innovations.ndim == 2:
            products = jnp.einsum("bmi,bmj->ij", innovations, innovations)
            return products / (innovations.shape[0] * innovations.shape[1]), jnp.mean(curvature, axis=(0, 1))
        if jnp.ndim(dist.levels) == 1:
            return jnp.mean(innovations**2, axis=(0, 1)), jnp.mean(curvature, axis=(0, 1))
        return (
            _average_on_grid(dist, innovations**2, state.innovations),
            _average_on_grid(dist, curvature, state.curvature),
        )


def _average_on_grid(
    dist: ReturnDist, numbers: Float[Array, "batch members n"], default: Float[Array, " grid"]
) -> Float[Array, " grid"]:
    """The means of what falls to each point of the grid by its level; the default where nothing does."""
    size = default.shape[-1]
    points = jnp.clip((dist.levels * size).astype(jnp.int32), 0, size - 1)
    points = jnp.broadcast_to(points, dist.values.shape).ravel()
    counts = jnp.zeros(size).at[points].add(1.0)
    sums = jnp.zeros(size).at[points].add(numbers.ravel())
    return jnp.where(counts > 0, sums / jnp.maximum(counts, 1.0), default)


def _interpolate(levels: Any, moments: Any) -> Float[Array, "*shared n"]:
    grid = jnp.asarray(midpoints(moments.shape[-1]), jnp.float32)
    return jnp.interp(jnp.asarray(levels, jnp.float32), grid, moments)


def check_estimator(estimator: Statistic, representation: Representation, members: int, discrete: bool) -> None:
    """Raise unless an agent with this many members can give what the estimator needs."""
    check_compatible(estimator, representation)
    needs, name = estimator.needs, type(getattr(estimator, "variance", None)).__name__
    if "visits" in needs and not discrete:
        raise ValueError(f"{name} counts discrete actions, and these are continuous; use another model of V")
    if "ema" in needs and not discrete:
        raise ValueError(f"{name} with source='ema': these agents have no EMA network that acts; use source='twin'")
    if members < 2 and ("twin" in needs or "heads" in needs):
        raise ValueError(
            f"{name} compares heads, and there is one; set num_heads of FixedQuantiles (--representation.num-heads 2)"
        )
    kind = type(representation).__name__
    regresses = representation.content == "quantiles" and getattr(representation, "kappa", None) is not None
    if "innovations" in needs and not regresses:
        raise ValueError(f"{name} is about the errors of quantile regression, by which {kind} does not learn")
    if "innovations" in needs and getattr(estimator, "full", False) and representation.fixed_quantiles is None:
        raise ValueError(f"{name} keeps the covariance of fixed levels; with {kind} use full=False")
