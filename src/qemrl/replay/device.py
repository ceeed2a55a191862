"""Replay on the device, as pure functions of a state of arrays, for JAX environments."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import custom_batching, lax
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from qemrl.replay import sum_tree
from qemrl.replay.config import ReplayConfig, check_step, count_rows
from qemrl.replay.n_step import discount_powers, n_step_returns
from qemrl.types import Batch, EnvSpec, Step


class ReplayState(NamedTuple):
    """The arrays of a replay; a row is a step of all environments, and flat, which is fastest to write and read."""

    observation: Shaped[Array, "rows features"]
    next_observation: Shaped[Array, "rows features"]
    action: Int[Array, "rows envs"] | Float[Array, "rows components"]
    reward: Float[Array, "rows envs"]
    terminated: Bool[Array, "rows envs"]
    truncated: Bool[Array, "rows envs"]
    next_mask: Bool[Array, "rows allowed"] | None
    member_mask: Bool[Array, "rows masked"] | None
    tree: Float[Array, " nodes"] | None
    """The sum tree over priorities; None if draws are uniform."""

    largest: Float[Array, ""] | None
    """The largest leaf so far, which new transitions enter with."""


@dataclass(frozen=True)
class DeviceReplay:
    """What is fixed about a replay: a ring of T = capacity // E rows; the flat index of a transition is row · E + env.

    The number of rows written so far is handed in. It is the same for all seeds, so under `vmap` it must not be mapped:
    then a row is written as a slice, in place, and a step costs the same whatever the capacity.
    """

    spec: EnvSpec
    num_envs: int
    config: ReplayConfig
    discount: float
    num_masked: int = 0
    """How many members of an ensemble have a mask that says what they learn from; zero where all learn from all."""

    def __post_init__(self) -> None:
        if self.spec.stacked_frames != 1:
            raise ValueError(
                f"{self.spec.id} stacks {self.spec.stacked_frames} frames, and a replay on the device would store each "
                "several times: use HostReplay, or an environment that does not stack"
            )
        count_rows(self.spec, self.num_envs, self.config)
        discount_powers(self.discount, self.config.n_step)

    @property
    def num_rows(self) -> int:
        """The rows of the ring."""
        return count_rows(self.spec, self.num_envs, self.config)

    @property
    def capacity(self) -> int:
        """The number of transitions that fit."""
        return self.num_rows * self.num_envs

    @staticmethod
    def required_bytes(spec: EnvSpec, num_envs: int, config: ReplayConfig, num_masked: int = 0) -> int:
        """The memory of the arrays of one state."""
        state = jax.eval_shape(DeviceReplay(spec, num_envs, config, 1.0, num_masked).init)
        return sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(state))

    def init(self) -> ReplayState:
        """An empty replay."""
        rows, envs = self.num_rows, self.num_envs
        observations = (rows, envs * math.prod(self.spec.observation_shape))
        dtype = jnp.dtype(self.spec.observation_dtype)
        prioritized = self.config.prioritized
        return ReplayState(
            observation=jnp.zeros(observations, dtype),
            next_observation=jnp.zeros(observations, dtype),
            action=jnp.zeros((rows, envs * math.prod(self.spec.action_shape)), jnp.dtype(self.spec.action_dtype)),
            reward=jnp.zeros((rows, envs), jnp.float32),
            terminated=jnp.zeros((rows, envs), bool),
            truncated=jnp.zeros((rows, envs), bool),
            next_mask=jnp.zeros((rows, envs * self.spec.num_actions), bool) if self.spec.has_mask else None,
            member_mask=jnp.zeros((rows, envs * self.num_masked), bool) if self.num_masked else None,
            tree=jnp.zeros(2 * sum_tree.count_leaves(self.capacity), jnp.float32) if prioritized else None,
            largest=jnp.float32(1) if prioritized else None,
        )

    def add(self, state: ReplayState, step: Step, rows: Int[Array, ""]) -> ReplayState:
        """Store a step of all environments, the `rows`-th one counted from zero."""
        check_step(step, self.spec, self.num_envs, self.num_masked)
        position = rows % self.num_rows
        stored = {}
        for name, values in step._asdict().items():
            array = getattr(state, name)
            if array is not None:
                stored[name] = _replace_row(array, position, values.reshape(1, -1).astype(array.dtype))
        state = state._replace(**stored)
        if state.tree is None or state.largest is None:
            return state
        indices = position * self.num_envs + jnp.arange(self.num_envs)
        leaves = jnp.broadcast_to(state.largest, (self.num_envs,))
        return state._replace(tree=sum_tree.replace_leaves(state.tree, indices, leaves))

    def sample(
        self, state: ReplayState, bits: UInt32[Array, " batch"], rows: Int[Array, ""]
    ) -> tuple[Batch, Int[Array, " batch"]]:
        """Transitions that `bits` choose, and their flat indices; at least one row must have been written."""
        if state.tree is None:
            size = jnp.minimum(rows, self.num_rows) * self.num_envs
            indices = (bits % size.astype(jnp.uint32)).astype(jnp.int32)
            weight = jnp.ones(bits.shape, jnp.float32)
        else:
            indices = sum_tree.find(state.tree, bits)
            weight = sum_tree.importance_weights(state.tree, indices, self.config.importance_exponent)
        returns = n_step_returns(
            state.reward.reshape(-1),
            state.terminated.reshape(-1),
            state.truncated.reshape(-1),
            indices,
            rows,
            self.num_envs,
            discount_powers(self.discount, self.config.n_step),
        )
        batch = Batch(
            observation=self._read(state.observation, indices),
            action=state.action.reshape(self.capacity, *self.spec.action_shape)[indices],
            reward=returns.reward,
            discount=returns.discount,
            next_observation=self._read(state.next_observation, returns.last),
            next_mask=(
                None
                if state.next_mask is None
                else state.next_mask.reshape(self.capacity, self.spec.num_actions)[returns.last]
            ),
            weight=weight,
            member_mask=(
                None
                if state.member_mask is None
                else state.member_mask.reshape(self.capacity, self.num_masked)[indices]
            ),
        )
        return batch, indices

    def _read(self, array: Shaped[Array, "rows features"], indices: Int[Array, " batch"]) -> Shaped[Array, "batch ..."]:
        return array.reshape(self.capacity, -1)[indices].reshape(-1, *self.spec.observation_shape)

    def update_priorities(
        self, state: ReplayState, indices: Int[Array, " batch"], priorities: Float[Array, " batch"]
    ) -> ReplayState:
        """Give transitions other priorities.

        Of several priorities for one transition the largest counts, and all count as at least 10⁻⁶.
        """
        if state.tree is None or state.largest is None:
            raise ValueError("this replay draws uniformly: it has priorities only if config.prioritized is set")
        leaves = sum_tree.compute_leaves(priorities, self.config.priority_exponent)
        return state._replace(
            tree=sum_tree.replace_leaves(state.tree, indices, leaves), largest=jnp.maximum(state.largest, leaves.max())
        )


@custom_batching.custom_vmap
def _replace_row(
    array: Shaped[Array, "*seeds rows features"], position: Int[Array, ""], row: Shaped[Array, "*seeds 1 features"]
) -> Shaped[Array, "*seeds rows features"]:
    """The array with another row, written as a slice also under `vmap` if the position is shared.

    JAX would turn a slice at an index into a scatter under `vmap`, shared index or not.
    """
    return lax.dynamic_update_slice_in_dim(array, row, position, array.ndim - 2)


@_replace_row.def_vmap
def _replace_row_of_seeds(axis_size, in_batched, array, position, row):
    array_batched, position_batched, row_batched = in_batched
    array = array if array_batched else jnp.broadcast_to(array, (axis_size, *array.shape))
    row = row if row_batched else jnp.broadcast_to(row, (axis_size, *row.shape))
    if position_batched:  # slower, and nobody's case, but right
        return lax.map(lambda each: _replace_row(*each), (array, position, row)), True
    return _replace_row(array, position, row), True
