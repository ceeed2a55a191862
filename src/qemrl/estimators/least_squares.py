"""Weighted least squares on a polynomial basis: from levels to the weights of each coefficient.

Two ways to W = (X'V⁻¹X)⁻¹X'V⁻¹. For levels that are known in advance, a QR factorization in float64, once.
For sampled levels, the normal equations, batched and differentiable in any array library. Both give weights in
the orthonormal scale of `basis`, where the first row is the weights of the mean.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float

from qemrl.estimators import backend
from qemrl.estimators.backend import Array
from qemrl.estimators.basis import CLIP, columns, triple_products

Column = Float[Array, "... n"]
"""Levels, precisions and weights; where one has no axes before its last, it is shared."""

Scalar = Float[Array, "... 1"]


def fixed_weights(
    basis: str, order: int, levels: Float[np.ndarray, " n"], precision: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "order n"]:
    """The weights for one set of levels, `precision` being 1/v at each of them.

    Raises:
        ValueError: If the levels do not determine `order` coefficients.
    """
    root = np.sqrt(precision)
    design = np.stack(columns(basis, levels, order), axis=-1)
    q, r = np.linalg.qr(design * root[:, None])
    pivots = np.abs(np.diag(r))
    if pivots.min() <= len(levels) * np.finfo(np.float64).eps * pivots.max():
        different = len(np.unique(np.clip(levels, CLIP, 1 - CLIP)))
        raise ValueError(
            f"the design is singular: {different} different levels between {levels.min():.6g} "
            f"and {levels.max():.6g} do not determine {order} coefficients"
        )
    return np.linalg.solve(r, q.T * root)


def sampled_mean_weights(basis: str, order: int, levels: Column, precision: Column | None) -> Column:
    """The first row of W, for each row of `levels`; equal precisions may be given as None.

    A regression passes through the center (m, ȳ) of its data. The mean of the distribution is its height where
    all columns but the first are zero, ȳ − Σ_k m_k c_k, and c = C⁻¹ Σ_n u_n (φ_n − m) y_n.
    """
    centered, means, factor, share = _normal_equations(basis, order, levels, precision)
    slopes = _solve(factor, means)
    return share - share * sum(a * column for a, column in zip(slopes, centered, strict=True))


def sampled_weights(basis: str, order: int, levels: Column, precision: Column | None) -> list[Column]:
    """All rows of W, for each row of `levels`; equal precisions may be given as None."""
    centered, means, factor, share = _normal_equations(basis, order, levels, precision)
    rows = _solve(factor, [share * column for column in centered])
    return [share - sum(m * row for m, row in zip(means, rows, strict=True)), *rows]


def correlated_weights(
    basis: str, order: int, levels: Column, covariance: Float[Array, "*batch n n"]
) -> Float[Array, "*batch order n"]:
    """All rows of W for errors that are correlated: generalized least squares, one solve for each matrix."""
    xp = backend.namespace(levels)
    design = xp.stack(columns(basis, levels, order), axis=-1)
    rank = max(design.ndim, covariance.ndim)
    design, covariance = backend.add_axes(design, rank), backend.add_axes(covariance, rank)
    design = xp.broadcast_to(design, (*covariance.shape[:-1], order))
    solved = xp.linalg.solve(covariance, design)
    gram = backend.dot(xp.matrix_transpose(design), solved)
    return xp.linalg.solve(gram, xp.matrix_transpose(solved))


def _normal_equations(
    basis: str, order: int, levels: Column, precision: Column | None
) -> tuple[list[Column], list[Scalar], list[list[Scalar]], Column]:
    """Centered columns, their means, the Cholesky factor of their covariance, and each level's share in it.

    A ridge of one unit in the last place, relative to each column's mean square over these levels and over all, keeps
    the factor finite when levels coincide; the constant column has none.
    """
    share, average = _shares(levels, precision)
    if backend.is_jax(levels):
        polynomials = columns(basis, levels, 2 * order - 1)
        means, squares, covariance = _expand(basis, order, [1.0, *(average(column) for column in polynomials[1:])])
        centered = [column - m for column, m in zip(polynomials[1:order], means, strict=True)]
    else:
        means, squares, centered, covariance = _center(columns(basis, levels, order), average)
    ridge = backend.resolution(levels)
    return centered, means, _cholesky(covariance, [ridge * (1 + square) for square in squares]), share


def _center(
    polynomials: list[Column], average: Callable[[Column], Scalar]
) -> tuple[list[Scalar], list[Scalar], list[Column], list[list[Scalar]]]:
    """Means, mean squares, centered columns and their covariance, a sum over the levels for each entry."""
    means = [average(column) for column in polynomials[1:]]
    centered = [column - m for column, m in zip(polynomials[1:], means, strict=True)]
    covariance = [[average(a * b) for b in centered[: i + 1]] for i, a in enumerate(centered)]
    return means, [row[-1] + m * m for row, m in zip(covariance, means, strict=True)], centered, covariance


def _expand(basis: str, order: int, sums: list[Any]) -> tuple[list[Scalar], list[Scalar], list[list[Scalar]]]:
    """Means, mean squares and covariance from 2·order − 2 sums: products of columns are polynomials again.

    Fewer sums over the levels make compiled programs faster. Elsewhere, where an operation on a few numbers costs as
    much as a sum, they do not pay.
    """
    means, products = sums[1:order], triple_products(basis, order)
    second = [[_combine(products[:, i + 1, j + 1], sums) for j in range(i + 1)] for i in range(order - 1)]
    covariance = [[s - means[i] * means[j] for j, s in enumerate(row)] for i, row in enumerate(second)]
    return means, [row[-1] for row in second], covariance


def _shares(levels: Column, precision: Column | None) -> tuple[Column, Callable[[Column], Scalar]]:
    """The weight of each level in an average, and that average."""
    if precision is None:
        even = 1 / levels.shape[-1]
        share = backend.namespace(levels).full_like(levels, even)
        return share, lambda column: even * backend.total(column)[..., None]
    share = precision / backend.total(precision)[..., None]
    return share, lambda column: backend.total(share * column)[..., None]


def _combine(coefficients: Float[np.ndarray, " sums"], sums: list) -> Scalar:
    return sum(float(c) * s for c, s in zip(coefficients, sums, strict=True) if c)


def _cholesky(matrix: list[list[Scalar]], ridges: list[Scalar]) -> list[list[Scalar]]:
    """The lower factor of a batch of small matrices, given and returned by rows, with a ridge on each pivot.

    Written out entry by entry: with at most five columns this is a handful of elementwise operations on the
    batch, which compilers fuse, where a batched LAPACK call would loop over the matrices.
    """
    factor: list[list[Scalar]] = []
    for i, row in enumerate(matrix):
        entries: list[Scalar] = []
        for j in range(i):
            rest = _subtract(row[j], (entries[k] * factor[j][k] for k in range(j)))
            entries.append(rest / factor[j][j])
        pivot = _subtract(row[i], (entry * entry for entry in entries))
        xp = backend.namespace(pivot)
        factor.append([*entries, xp.sqrt(xp.maximum(pivot, 0 * pivot) + ridges[i])])
    return factor


def _subtract(first: Array, terms: Iterator[Array]) -> Array:
    """The first less the sum of the terms, of which there may be none."""
    total = next(terms, None)
    if total is None:
        return first
    for term in terms:
        total = total + term
    return first - total


def _solve(factor: list[list[Scalar]], right: list[Array]) -> list[Array]:
    """The solution x of L L' x = right, by forward and back substitution."""
    size = len(factor)
    forward: list[Array] = []
    for i in range(size):
        rest = _subtract(right[i], (factor[i][k] * forward[k] for k in range(i)))
        forward.append(rest / factor[i][i])
    solution: list[Array] = [None] * size
    for i in reversed(range(size)):
        rest = _subtract(forward[i], (factor[k][i] * solution[k] for k in range(i + 1, size)))
        solution[i] = rest / factor[i][i]
    return solution
