"""n-step returns, summed when transitions are drawn.

A replay keeps one-step transitions only, and a draw walks along the rows that follow in the ring. So a step writes one
row whatever n is, and an observation is stored once; the batches are those of a replay that extends the last n − 1 rows
at each step. NumPy and JAX run the same lines.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from qemrl.types import Array


class Returns(NamedTuple):
    """The returns of m ≤ n steps, starting at drawn transitions."""

    reward: Float[Array, " batch"]
    """Σ_{i<m} γ^i r_i."""

    discount: Float[Array, " batch"]
    """γ^m, and zero where the last of the steps terminated."""

    last: Int[Array, " batch"]
    """The flat index of the last of the steps, whose next observation is the one to bootstrap from."""


def discount_powers(discount: float, n_step: int) -> Float[np.ndarray, " powers"]:
    """γ^0 … γ^n in float32."""
    if not 0 <= discount <= 1:
        raise ValueError(f"the discount must lie in [0, 1], got {discount}")
    return (np.float64(discount) ** np.arange(n_step + 1)).astype(np.float32)


def n_step_returns(
    reward: Float[Array, " capacity"],
    terminated: Bool[Array, " capacity"],
    truncated: Bool[Array, " capacity"],
    indices: Int[Array, " batch"],
    rows: int | Int[Array, ""],
    num_envs: int,
    powers: Float[np.ndarray, " powers"],
) -> Returns:
    """The returns from `indices` on, over the steps of the same episode among the `rows` written so far."""
    xp = np if isinstance(reward, np.ndarray) else jnp
    total, last = reward[indices], indices
    terminal = terminated[indices]
    discount = xp.broadcast_to(xp.asarray(powers[1]), total.shape)
    if len(powers) > 2:
        capacity = reward.shape[0]
        later = (rows - 1 - indices // num_envs) % (capacity // num_envs)  # how many rows were written after
        goes_on = ~(terminal | truncated[indices])
        for k in range(1, len(powers) - 1):
            goes_on = goes_on & (later >= k)
            here = (indices + k * num_envs) % capacity
            total = xp.where(goes_on, total + powers[k] * reward[here], total)
            discount = xp.where(goes_on, powers[k + 1], discount)
            terminal = xp.where(goes_on, terminated[here], terminal)
            last = xp.where(goes_on, here, last)
            goes_on = goes_on & ~(terminated[here] | truncated[here])
    return Returns(total, xp.where(terminal, np.float32(0), discount), last)
