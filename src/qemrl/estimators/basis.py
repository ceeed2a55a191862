"""The polynomials that a quantile function is expanded in.

Two families, each orthogonal under a uniform level τ, so that every polynomial but the first averages to zero
and the coefficient of the first is the mean:

- `hermite`: He_k(z), z = Φ⁻¹(τ), the Cornish-Fisher expansion (the paper's equation 4), norm² k!;
- `legendre`: P_k(2τ − 1), the expansion behind L-moments, with bounded columns, norm² 1/(2k+1).

Inside the package the columns are orthonormal, which keeps the normal equations near the identity; what users
see is in the families' own scale.
"""

import math
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from numpy.polynomial import hermite_e, legendre

from qemrl.estimators.backend import Array, namespace, ndtri

BasisName = Literal["hermite", "legendre"]
BASES: tuple[str, ...] = get_args(BasisName)

CLIP = 1e-5
"""Levels are moved this far away from 0 and 1, where the normal quantile is infinite."""


def columns(basis: str, levels: Float[Array, "*batch n"], count: int) -> list[Float[Array, "*batch n"]]:
    """The first `count` orthonormal polynomials at `levels`, by their three-term recurrences."""
    xp = namespace(levels)
    inside = xp.clip(levels, CLIP, 1 - CLIP)
    if basis == "hermite":
        x = ndtri(inside)
        slope = [1 / math.sqrt(k + 1) for k in range(count)]
        carry = [math.sqrt(k / (k + 1)) for k in range(count)]
    else:
        x = 2 * inside - 1
        slope = [math.sqrt((2 * k + 1) * (2 * k + 3)) / (k + 1) for k in range(count)]
        carry = [k / (k + 1) * math.sqrt((2 * k + 3) / (2 * k - 1)) if k else 0.0 for k in range(count)]
    polynomials = [xp.ones_like(x)]
    if count > 1:
        polynomials.append(slope[0] * x)
    for k in range(1, count - 1):
        polynomials.append(slope[k] * x * polynomials[k] - carry[k] * polynomials[k - 1])
    return polynomials[:count]


def norms(basis: str, count: int) -> Float[np.ndarray, " count"]:
    """The root mean squares of the first `count` polynomials in their own scale."""
    if basis == "hermite":
        return np.array([math.sqrt(math.factorial(k)) for k in range(count)])
    return np.array([1 / math.sqrt(2 * k + 1) for k in range(count)])


@lru_cache
def triple_products(basis: str, order: int) -> Float[np.ndarray, "sums order order"]:
    """`T[k, i, j] = E[φ_k φ_i φ_j]` for i, j < order and k ≤ 2·order − 2, exact by Gauss quadrature.

    Since φ_i φ_j = Σ_k T[k, i, j] φ_k, a Gram matrix of any weights takes 2·order − 1 sums over the levels and
    not order², and the moments of an expansion are contractions with T.
    """
    sums = 2 * order - 1
    if basis == "hermite":
        nodes, weights = hermite_e.hermegauss(2 * sums)
        table = hermite_e.hermevander(nodes, sums - 1)
    else:
        nodes, weights = legendre.leggauss(2 * sums)
        table = legendre.legvander(nodes, sums - 1)
    table = table / norms(basis, sums)
    products = np.einsum("n,nk,ni,nj->kij", weights / weights.sum(), table, table[:, :order], table[:, :order])
    products[np.abs(products) < 1e-10] = 0.0  # the selection rule, freed of rounding
    products.flags.writeable = False
    return products
