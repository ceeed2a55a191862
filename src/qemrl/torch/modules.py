"""Estimators of Q and risk measures as modules: weights for fixed levels are buffers, all else is plain PyTorch.

Modules run under autograd, `torch.compile(fullgraph=True)`, `torch.export` and `torch.func`. They have no parameters,
and their buffers, which follow from how they were made, are not in `state_dict`: an agent that takes one in still
loads what it has saved before. Values in half precision are added up in single precision, and the result is in the
dtype of the values. Shapes are checked, numbers are not; `qemrl.QEM` checks both.
"""

from collections.abc import Callable
from typing import Any, Literal

import array_api_compat.torch  # noqa: F401 it must be there before anything is compiled
import numpy as np
import torch
from torch import Tensor, nn

from qemrl import estimators
from qemrl.estimators import (
    ConstantVariance,
    EmpiricalMean,
    EstimatedVariance,
    Moments,
    Statistic,
    VarianceModel,
    midpoints,
)
from qemrl.estimators.basis import BasisName, columns, norms, triple_products
from qemrl.estimators.inputs import read_levels
from qemrl.estimators.risk import weigh_cells

EQUAL = ConstantVariance()

LevelsOrCount = Any
"""A number of quantiles, at midpoints, or the levels themselves."""


class _Buffers(nn.Module):
    """A module whose buffers are computed in float64 and rounded once, to the dtype that the module has."""

    def __init__(self, arrays: dict[str, np.ndarray], dtype: torch.dtype | None, device: Any) -> None:
        super().__init__()
        self._arrays = arrays
        dtype = torch.get_default_dtype() if dtype is None else dtype
        for name, array in arrays.items():
            self.register_buffer(name, torch.tensor(array, dtype=_at_least_single(dtype), device=device), False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move or convert the buffers, as `.to` and `.double` do: from float64, and never to half precision."""
        before = {name: buffer.dtype for name, buffer in self.named_buffers(recurse=False)}
        super()._apply(fn, recurse)
        for name, dtype in before.items():
            buffer = self.get_buffer(name)
            if buffer.dtype != dtype:
                kind = _at_least_single(buffer.dtype)
                setattr(self, name, torch.tensor(self._arrays[name], dtype=kind, device=buffer.device))
        return self


def _at_least_single(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class Linear(_Buffers):
    """A statistic that is a weighted sum of the quantiles at fixed levels: the plain mean, QEM, or a risk measure.

    `Linear(qemrl.CVaR(0.1), 51)(values)` is the mean of the worst tenth of returns.
    """

    weights: Tensor

    def __init__(
        self,
        statistic: Any,
        levels: LevelsOrCount,
        probs: Any = None,
        *,
        dtype: torch.dtype | None = None,
        device: Any = None,
        **more: np.ndarray,
    ) -> None:
        """The module of `statistic`, which has `weights`.

        Args:
            statistic: An estimator or a risk measure of `qemrl`.
            levels: The number of quantiles, or their levels (n,).
            probs: The probability that each quantile stands for; 1/n by default.
            dtype: Of the weights, which half-precision values are computed in, too; torch's default by default.
            device: Where they are.
            more: Further arrays to keep as buffers.

        Raises:
            ValueError: The levels do not lie in [0, 1], or are too few.
        """
        if isinstance(statistic, type) or not hasattr(statistic, "weights"):
            raise ValueError(f"{type(statistic).__name__} is not a weighted sum of quantiles; use make_module")
        known = _read_levels(levels, probs, statistic.min_quantiles)
        row = np.asarray(statistic.weights(known.levels, known.probs))[0]
        super().__init__({"weights": row, **more}, dtype, device)
        self.statistic = statistic

    def forward(self, values: Tensor) -> Tensor:
        """The statistic of values (*batch, n)."""
        return _product(values, self.weights)

    def extra_repr(self) -> str:
        """What it estimates, and from how many quantiles."""
        return f"{self.statistic}, quantiles={len(self.weights)}"


class Mean(Linear):
    """The plain mean of quantiles that stand for 1/n each: `values.mean(-1)`, to the bit."""

    def __init__(self, levels: LevelsOrCount, *, dtype: torch.dtype | None = None, device: Any = None) -> None:
        """The mean of so many quantiles, whatever their levels."""
        super().__init__(EmpiricalMean(), levels, dtype=dtype, device=device)

    def forward(self, values: Tensor) -> Tensor:
        """The mean of values (*batch, n)."""
        _require_count(values, self.weights)
        return values.to(_at_least_single(values.dtype)).mean(-1).to(values.dtype)


class QEM(Linear):
    """Q by the Quantiled Expansion Mean at fixed levels, in the place of `values.mean(-1)`."""

    rows: Tensor
    design: Tensor
    products: Tensor

    def __init__(
        self,
        levels: LevelsOrCount,
        order: int = 4,
        variance: VarianceModel | EstimatedVariance | Literal["auto"] = EQUAL,
        basis: BasisName = "hermite",
        probs: Any = None,
        *,
        dtype: torch.dtype | None = None,
        device: Any = None,
    ) -> None:
        """QEM for so many quantiles at midpoints, or for the levels (n,) themselves.

        Args:
            levels: The number of quantiles, or their levels.
            order: The number of columns, 1 to 6.
            variance: V, a function from levels to variances, or "auto".
            basis: `hermite` or `legendre`.
            probs: The probability that each quantile stands for; 1/n by default.
            dtype: Of the weights; torch's default by default.
            device: Where they are.

        Raises:
            ValueError: A setting or a level makes no sense; the message says which, and what would.
        """
        qem = estimators.QEM(order, variance, basis)
        _require_fixed_variance(qem)
        known = _read_levels(levels, probs, qem.order)
        scale = norms(qem.basis, qem.order)[:, None]
        products = triple_products(qem.basis, qem.order)[:, 1:, 1:]
        super().__init__(
            qem,
            known.levels,
            known.probs,
            dtype=dtype,
            device=device,
            rows=np.asarray(qem.weights(known.levels, known.probs)).T * scale.T,
            design=np.stack(columns(qem.basis, known.levels, qem.order)),
            products=products.reshape(len(products), -1).T.copy(),
        )
        self.order = qem.order

    def moments(self, values: Tensor) -> Moments:
        """Mean, variance, skewness and excess kurtosis of the fitted curve, each (*batch,); see `qemrl.QEM.moments`."""
        coefficients = _product(values, self.rows, keep=True)
        shape = coefficients[..., 1:]
        pairs = (shape[..., :, None] * shape[..., None, :]).flatten(-2)
        square = pairs @ self.products.to(pairs.dtype)
        third = (square[..., 1 : self.order] * shape).sum(-1)
        second, fourth = square[..., 0], (square * square).sum(-1)
        spread = second > 0
        safe = torch.where(spread, second, 1.0)
        skewness = torch.where(spread, third / (safe * safe.sqrt()), 0.0)
        kurtosis = torch.where(spread, fourth / (safe * safe) - 3, 0.0)
        return Moments(*(each.to(values.dtype) for each in (coefficients[..., 0], second, skewness, kurtosis)))

    def fit(self, values: Tensor) -> Tensor:
        """The fitted quantile function at the levels, (*batch, n)."""
        coefficients = _product(values, self.rows, keep=True)
        return (coefficients @ self.design.to(coefficients.dtype)).to(values.dtype)


class MeanStd(Linear):
    """The mean less a number of standard deviations, at fixed levels."""

    def __init__(
        self,
        levels: LevelsOrCount,
        penalty: float = 1.0,
        probs: Any = None,
        *,
        dtype: torch.dtype | None = None,
        device: Any = None,
    ) -> None:
        """`qemrl.MeanStd(penalty)` for so many quantiles, or for the levels themselves."""
        super().__init__(EmpiricalMean(), levels, probs, dtype=dtype, device=device)
        self.penalty = estimators.MeanStd(penalty).penalty

    def forward(self, values: Tensor) -> Tensor:
        """The statistic of values (*batch, n)."""
        _require_count(values, self.weights)
        return _subtract_std(values, self.weights, self.penalty)


class Implicit(nn.Module):
    """A statistic of quantiles at levels that come with every call: `module(values, levels, probs=None)`.

    Levels, and probs like them, are (n,), or have the axes of the values with size one where they are shared: levels
    (batch, 1, n) serve values (batch, actions, n).
    """

    def __init__(self, statistic: Statistic) -> None:
        """The module of an estimator or a risk measure of `qemrl`.

        Raises:
            ValueError: V is estimated while learning, which a module does not do.
        """
        super().__init__()
        if isinstance(statistic, type) or not callable(getattr(statistic, "mean", None)):
            raise ValueError(f"expected an estimator or a risk measure such as qemrl.QEM(), got {statistic!r}")
        if isinstance(statistic, estimators.QEM):
            _require_fixed_variance(statistic)
        self.statistic = statistic

    def forward(self, values: Tensor, levels: Tensor, probs: Tensor | None = None) -> Tensor:
        """The statistic of values (*batch, n)."""
        _require_tensor(values, "values")
        _require_tensor(levels, "levels")
        if probs is not None:
            _require_tensor(probs, "probs")
        if levels.shape[-1] != values.shape[-1]:
            shapes = f"(shapes {tuple(values.shape)} and {tuple(levels.shape)})"
            raise ValueError(f"{values.shape[-1]} values for {levels.shape[-1]} levels {shapes}")
        dtype = _at_least_single(torch.promote_types(values.dtype, levels.dtype))
        given, values, levels = values.dtype, values.to(dtype), levels.to(dtype)
        probs = None if probs is None else probs.to(dtype)
        if isinstance(self.statistic, estimators.MeanStd):
            shares = torch.full_like(levels, 1 / levels.shape[-1]) if probs is None else probs / probs.sum(-1, True)
            return _subtract_std(values, shares, self.statistic.penalty).to(given)
        # Seen from one of the values, because weights in single precision add up to one only to rounding.
        origin = values[..., :1]
        return (origin[..., 0] + ((values - origin) * self._weigh(levels, probs)).sum(-1)).to(given)

    def _weigh(self, levels: Tensor, probs: Tensor | None) -> Tensor:
        statistic: Any = self.statistic
        if isinstance(statistic, estimators.QEM):
            return statistic.weigh_sampled(levels, probs)
        if isinstance(statistic, EmpiricalMean):
            return torch.full_like(levels, 1 / levels.shape[-1]) if probs is None else probs / probs.sum(-1, True)
        return weigh_cells(statistic, levels, probs)

    def extra_repr(self) -> str:
        """What it estimates."""
        return str(self.statistic)


class ImplicitQEM(Implicit):
    """Q by the Quantiled Expansion Mean at random levels, as in IQN and FQF."""

    def __init__(
        self,
        order: int = 4,
        variance: VarianceModel | EstimatedVariance | Literal["auto"] = EQUAL,
        basis: BasisName = "hermite",
    ) -> None:
        """QEM with these settings; see `qemrl.QEM`."""
        super().__init__(estimators.QEM(order, variance, basis))


def make_module(statistic: Statistic, levels: LevelsOrCount = None, probs: Any = None, **options: Any) -> nn.Module:
    """The module of any estimator or risk measure of `qemrl`: at fixed levels, or without them an `Implicit` one.

    Args:
        statistic: What to estimate: `qemrl.QEM()`, `qemrl.EmpiricalMean()`, `qemrl.CVaR(0.1)`, …
        levels: The number of quantiles, or their levels; None if they come with every call.
        probs: The probability that each quantile stands for; 1/n by default.
        options: `dtype` and `device`.
    """
    if levels is None:
        return Implicit(statistic)
    if isinstance(statistic, estimators.QEM):
        return QEM(levels, statistic.order, _require_fixed_variance(statistic), statistic.basis, probs, **options)
    if isinstance(statistic, estimators.MeanStd):
        return MeanStd(levels, statistic.penalty, probs, **options)
    if isinstance(statistic, EmpiricalMean) and probs is None:
        return Mean(levels, **options)
    return Linear(statistic, levels, probs, **options)


def left_truncated_std(values: Tensor) -> Tensor:
    """DLTV's σ₊ = (1/2N Σ_{i ≥ N/2} (θ_i − θ_{N/2})²)^½ of values (*batch, n), which are put in order first."""
    _require_tensor(values, "values")
    if not values.shape[-1]:
        raise ValueError(f"a spread needs at least one quantile, got values of the shape {tuple(values.shape)}")
    ordered = values.sort(dim=-1).values
    median = ordered[..., (values.shape[-1] - 1) // 2, None]
    return ((ordered - median).clamp_min(0) ** 2).mean(-1).div(2).sqrt()


def _require_fixed_variance(qem: estimators.QEM) -> Any:
    if qem.needs:
        name = type(qem.variance).__name__
        raise ValueError(f"{name} estimates V while learning, which a module does not do: give a fixed one")
    return qem.variance


def _read_levels(levels: LevelsOrCount, probs: Any, order: int) -> Any:
    if isinstance(levels, bool) or (isinstance(levels, float) and not levels.is_integer()):
        raise ValueError(f"give a whole number of quantiles or their levels (n,), got {levels!r}")
    known = read_levels(midpoints(int(levels)) if isinstance(levels, int | float) else levels, probs, order)
    if not known.fixed:
        raise ValueError(
            f"fixed levels are one set (n,) that can be read here, got the shape {tuple(known.levels.shape)}; "
            "levels that come with every call are for Implicit and ImplicitQEM"
        )
    return known


def _require_tensor(given: Any, name: str) -> None:
    if not isinstance(given, Tensor) or given.ndim == 0 or not given.dtype.is_floating_point:
        what = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
        raise ValueError(f"{name} must be a tensor of floating-point numbers with at least one axis, got {what}")


def _require_count(values: Tensor, weights: Tensor) -> None:
    _require_tensor(values, "values")
    if values.shape[-1] != weights.shape[0]:
        raise ValueError(f"made for {weights.shape[0]} quantiles, got values of the shape {tuple(values.shape)}")


def _product(values: Tensor, weights: Tensor, keep: bool = False) -> Tensor:
    """The product of values (*batch, n) and weights (n,) or (n, m), in the dtype of the values, or kept wider."""
    _require_count(values, weights)
    device = values.device.type
    if device != "meta" and torch.is_autocast_enabled(device):  # three digits are not enough for Q
        with torch.autocast(device, enabled=False):
            return _product(values, weights, keep)
    if values.dtype == weights.dtype:
        return values @ weights
    dtype = torch.promote_types(values.dtype, weights.dtype)
    result = values.to(dtype) @ weights.to(dtype)
    return result if keep else result.to(values.dtype)


def _subtract_std(values: Tensor, shares: Tensor, penalty: float) -> Tensor:
    """Mean less `penalty` standard deviations; its gradient is finite also where all values are equal."""
    given, wide = values.dtype, values.to(torch.promote_types(values.dtype, shares.dtype))
    mean = (wide * shares).sum(-1)
    variance = ((wide - mean[..., None]) ** 2 * shares).sum(-1)
    spread = variance > 0
    std = torch.where(spread, torch.where(spread, variance, 1.0).sqrt(), 0.0)
    return (mean - penalty * std).to(given)
