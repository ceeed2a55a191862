"""Sum trees: draws in proportion to priorities, in NumPy and in JAX on the same array.

A tree of P leaves (a power of two) is an array of 2·P float32: node i is the sum of nodes 2i and 2i + 1, node 1 the
total, the leaves are nodes P to 2P − 1, and node 0 is not used. Every node is at every moment exactly left + right as
float32 rounds it, so the leaves alone determine the tree and both libraries hold the same one.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array as JaxArray
from jaxtyping import Float, Int, UInt32

from qemrl.types import Array

SMALLEST_PRIORITY = 1e-6
"""Smaller priorities count as this one, so that no transition is lost for good and no total is zero."""


def count_leaves(capacity: int) -> int:
    """The smallest power of two that is at least `capacity`."""
    return 1 << (capacity - 1).bit_length()


def compute_leaves(priorities: Float[Array, " batch"], exponent: float) -> Float[Array, " batch"]:
    """The leaves of priorities: max(priority, 10⁻⁶)^α in float32."""
    xp = np if isinstance(priorities, np.ndarray) else jnp
    floored = xp.maximum(priorities.astype(xp.float32), np.float32(SMALLEST_PRIORITY))
    return xp.power(floored, np.float32(exponent))


def find(tree: Float[Array, " nodes"], bits: UInt32[Array, " batch"]) -> Int[Array, " batch"]:
    """The leaves at (i + bits / 2³²) / batch · total, one in each of the equal parts of the total.

    A leaf of priority zero is never returned, however the sums were rounded: where all of a node's priority is on one
    side, that side is taken.
    """
    xp = np if isinstance(tree, np.ndarray) else jnp
    batch, leaves = bits.shape[0], tree.shape[0] // 2
    fractions = (bits >> np.uint32(8)).astype(xp.float32) * np.float32(2**-24)  # below one, without rounding
    targets = (xp.arange(batch, dtype=xp.float32) + fractions) * (tree[1] * np.float32(1 / batch))
    depth = leaves.bit_length() - 1
    if isinstance(tree, np.ndarray):
        nodes = np.ones(batch, np.int64)
        for _ in range(depth):
            nodes, targets = _descend(tree, nodes, targets)
        return nodes - leaves
    start = (jnp.ones(batch, jnp.int32), targets)
    return lax.fori_loop(0, depth, lambda _, now: _descend(tree, *now), start)[0] - leaves


def _descend(
    tree: Float[Array, " nodes"], nodes: Int[Array, " batch"], targets: Float[Array, " batch"]
) -> tuple[Int[Array, " batch"], Float[Array, " batch"]]:
    """The children that the targets fall on, and what is left of the targets."""
    xp = np if isinstance(tree, np.ndarray) else jnp
    nodes = 2 * nodes
    left = tree[nodes]
    goes_right = (targets >= left) & (tree[nodes + 1] > 0)
    return nodes + goes_right.astype(nodes.dtype), xp.where(goes_right, targets - left, targets)


def importance_weights(
    tree: Float[Array, " nodes"], indices: Int[Array, " batch"], exponent: float
) -> Float[Array, " batch"]:
    """(size · P(i))^−β over its largest in the batch, which is (least priority in the batch / priority)^β."""
    xp = np if isinstance(tree, np.ndarray) else jnp
    priorities = tree[indices + tree.shape[0] // 2]
    return xp.power(priorities.min() / priorities, np.float32(exponent))


def rebuild(tree: Float[np.ndarray, " nodes"]) -> None:
    """Compute all nodes from the leaves, in place."""
    level = tree.shape[0] // 2
    while level > 1:
        tree[level // 2 : level] = tree[level : 2 * level : 2] + tree[level + 1 : 2 * level : 2]
        level //= 2


def set_leaves(
    tree: Float[np.ndarray, " nodes"], indices: Int[np.ndarray, " batch"], values: Float[np.ndarray, " batch"]
) -> None:
    """Set leaves in place; where an index occurs more than once, the largest of its values counts."""
    nodes = indices + tree.shape[0] // 2
    tree[nodes] = 0
    np.maximum.at(tree, nodes, values)
    for _ in range(tree.shape[0].bit_length() - 2):
        nodes = nodes >> 1
        tree[nodes] = tree[2 * nodes] + tree[2 * nodes + 1]


def fill(tree: Float[np.ndarray, " nodes"], start: int, count: int, value: np.float32) -> None:
    """Set the `count` leaves from `start` on to one value, in place."""
    first = start + tree.shape[0] // 2
    last = first + count - 1
    tree[first : last + 1] = value
    while first > 1 and first < last:
        first, last = first >> 1, last >> 1
        tree[first : last + 1] = tree[2 * first : 2 * last + 2 : 2] + tree[2 * first + 1 : 2 * last + 2 : 2]
    while first > 1:  # a single node is left, for which scalars are faster than arrays
        first >>= 1
        tree[first] = tree[2 * first] + tree[2 * first + 1]


def replace_leaves(
    tree: Float[JaxArray, " nodes"], indices: Int[JaxArray, " batch"], values: Float[JaxArray, " batch"]
) -> Float[JaxArray, " nodes"]:
    """A tree with other leaves; where an index occurs more than once, the largest of its values counts."""
    nodes = indices + tree.shape[0] // 2
    tree = tree.at[nodes].set(jnp.float32(0)).at[nodes].max(values)  # a plain set would leave duplicates to chance

    def climb(_, now):
        tree, nodes = now
        nodes = nodes // 2
        return tree.at[nodes].set(tree[2 * nodes] + tree[2 * nodes + 1]), nodes

    # A loop here and in `find`: with all levels written out, XLA fuses reads past writes and copies the whole tree.
    return lax.fori_loop(0, tree.shape[0].bit_length() - 2, climb, (tree, nodes))[0]
