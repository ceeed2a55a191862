"""Distributions on finitely many atoms, and how far apart they are."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from qemrl.estimators.backend import Array


@dataclass(frozen=True, eq=False)
class DiscreteDistribution:
    """Atoms in increasing order, with their probabilities."""

    atoms: Float[np.ndarray, " n"]
    probs: Float[np.ndarray, " n"]
    error: float = 0.0
    """How much probability may be misplaced: mass that was cut off, or the 95% band of a sample."""

    @staticmethod
    def of(atoms: Float[np.ndarray, " n"], probs: Float[np.ndarray, " n"] | None = None) -> "DiscreteDistribution":
        """The distribution on `atoms` in any order; equal atoms are merged, and probabilities made to add up to one."""
        atoms = np.asarray(atoms, dtype=np.float64)
        probs = np.full(atoms.shape, 1.0) if probs is None else np.asarray(probs, dtype=np.float64)
        if atoms.ndim != 1 or atoms.shape != probs.shape or not len(atoms):
            raise ValueError(f"got atoms of shape {atoms.shape} and probabilities of shape {probs.shape}")
        if probs.min() < 0 or not probs.sum() > 0:
            raise ValueError(f"probabilities must not be negative; the smallest is {probs.min()}")
        merged, where = np.unique(atoms, return_inverse=True)
        return DiscreteDistribution(merged, np.bincount(where, probs) / probs.sum())

    @property
    def mean(self) -> float:
        """The expectation."""
        return float(self.probs @ self.atoms)

    @property
    def variance(self) -> float:
        """The variance."""
        return float(self.probs @ (self.atoms - self.mean) ** 2)

    def quantile(self, levels: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The smallest atom at which the distribution function reaches the level."""
        reached = np.searchsorted(np.cumsum(self.probs), np.asarray(levels) - 1e-12)
        return self.atoms[np.minimum(reached, len(self.atoms) - 1)]

    def cdf(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The probability of atoms up to `x`."""
        steps = np.concatenate([[0.0], np.cumsum(self.probs)])
        return steps[np.searchsorted(self.atoms, x, side="right")]


def wasserstein(first: DiscreteDistribution, second: DiscreteDistribution) -> float:
    """The 1-Wasserstein distance W₁ = ∫ |F − G| dx."""
    return _integrate(first, second, lambda gap: np.abs(gap))


def cramer(first: DiscreteDistribution, second: DiscreteDistribution) -> float:
    """The Cramér distance ℓ₂ = (∫ (F − G)² dx)^½."""
    return float(np.sqrt(_integrate(first, second, lambda gap: gap**2)))


def _integrate(first: DiscreteDistribution, second: DiscreteDistribution, of_gap) -> float:
    places = np.union1d(first.atoms, second.atoms)
    gap = first.cdf(places[:-1]) - second.cdf(places[:-1])
    return float(of_gap(gap) @ np.diff(places))
