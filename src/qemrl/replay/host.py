"""Replay on the host, in NumPy, for environments that run there."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int, UInt32

from qemrl.replay import sum_tree
from qemrl.replay.config import ReplayConfig, check_step, count_rows
from qemrl.replay.frames import FrameStore, Layout, PairStore
from qemrl.replay.n_step import discount_powers, n_step_returns
from qemrl.types import Batch, EnvSpec, Step


class HostReplay:
    """A ring of rows, one for each step of environments side by side; the flat index of a transition is row · E + env.

    A draw is a function of the bits that are handed in, and every row is a transition at every moment: over fewer than
    n steps until n have gone by. Observations that stack frames are put together from single frames when drawn, see
    `FrameStore`, which also says when the oldest transitions leave early. All memory is allocated at once,
    and touched as it is written.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, config: ReplayConfig, discount: float, num_masked: int = 0):
        self._spec, self._num_envs, self.config, self._num_masked = spec, num_envs, config, num_masked
        self._num_rows = count_rows(spec, num_envs, config)
        self._powers = discount_powers(discount, config.n_step)
        self._observations = _store(spec)(spec, num_envs, self._num_rows)
        self._arrays = {name: np.zeros(*each) for name, each in _layout(spec, num_envs, config, num_masked).items()}
        self._action, self._reward = self._arrays["action"], self._arrays["reward"]
        self._terminated, self._truncated = self._arrays["terminated"], self._arrays["truncated"]
        self._next_mask, self._member_mask = self._arrays.get("next_mask"), self._arrays.get("member_mask")
        self._tree = self._arrays.get("tree")
        self._flat = {name: self._arrays[name].reshape(-1) for name in ("reward", "terminated", "truncated")}
        self._flat_action = self._action.reshape(-1, *spec.action_shape)
        self._largest = np.float32(1)
        self._rows = 0
        self._oldest_row = 0

    @property
    def capacity(self) -> int:
        """The number of transitions that fit."""
        return self._num_rows * self._num_envs

    @property
    def size(self) -> int:
        """The number of transitions that can be drawn."""
        return (self._rows - self._oldest_row) * self._num_envs

    @property
    def nbytes(self) -> int:
        """The memory that is allocated."""
        return sum(array.nbytes for array in (self._arrays | self._observations.arrays).values())

    @staticmethod
    def required_bytes(spec: EnvSpec, num_envs: int, config: ReplayConfig, num_masked: int = 0) -> int:
        """The memory that a replay allocates for its arrays."""
        num_rows = count_rows(spec, num_envs, config)
        layout = _layout(spec, num_envs, config, num_masked) | _store(spec).layout(spec, num_envs, num_rows)
        return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in layout.values())

    def add(self, step: Step) -> None:
        """Store a step of all environments."""
        check_step(step, self._spec, self._num_envs, self._num_masked)
        position = self._rows % self._num_rows
        self._observations.write(self._rows, step)
        self._action[position] = step.action
        self._reward[position] = step.reward
        self._terminated[position] = step.terminated
        self._truncated[position] = step.truncated
        if self._next_mask is not None:
            self._next_mask[position] = step.next_mask
        if self._member_mask is not None:
            self._member_mask[position] = step.member_mask
        self._rows += 1
        left_from, self._oldest_row = self._oldest_row, self._observations.oldest_row(self._rows)
        if self._tree is not None:
            for row in range(left_from, self._oldest_row):
                sum_tree.fill(self._tree, row % self._num_rows * self._num_envs, self._num_envs, np.float32(0))
            sum_tree.fill(self._tree, position * self._num_envs, self._num_envs, self._largest)

    def end_episodes(self, envs: Bool[np.ndarray, " envs"]) -> None:
        """End the episodes of some environments with the last step that was stored, as truncated."""
        if self._rows == 0:
            return
        self._truncated[(self._rows - 1) % self._num_rows] |= envs
        self._observations.end_episodes(envs)

    def sample(self, bits: UInt32[np.ndarray, " batch"]) -> tuple[Batch, Int[np.ndarray, " batch"]]:
        """Transitions that `bits` choose, and their flat indices."""
        size = self.size
        if size == 0:
            raise ValueError("the replay is empty: add a step before sampling")
        if self._tree is not None:
            indices = sum_tree.find(self._tree, bits)
            weight = sum_tree.importance_weights(self._tree, indices, self.config.importance_exponent)
        else:
            indices = (bits % np.uint32(size)).astype(np.int64)
            weight = np.ones(bits.shape, np.float32)
            if self._oldest_row > max(0, self._rows - self._num_rows):  # rows have left early: count from the oldest
                indices += self._oldest_row % self._num_rows * self._num_envs
                indices %= self.capacity
        flat = self._flat
        returns = n_step_returns(
            flat["reward"],
            flat["terminated"],
            flat["truncated"],
            indices,
            self._rows,
            self._num_envs,
            self._powers,
        )
        mask, members = self._next_mask, self._member_mask
        batch = Batch(
            observation=self._observations.observation(indices),
            action=self._flat_action[indices],
            reward=returns.reward,
            discount=returns.discount,
            next_observation=self._observations.next_observation(returns.last),
            next_mask=None if mask is None else mask.reshape(-1, mask.shape[-1])[returns.last],
            weight=weight,
            member_mask=None if members is None else members.reshape(-1, members.shape[-1])[indices],
        )
        return batch, indices

    def update_priorities(self, indices: Int[np.ndarray, " batch"], priorities: Float[np.ndarray, " batch"]) -> None:
        """Give transitions other priorities; transitions that have left the replay are passed over.

        Of several priorities for one transition the largest counts, and all count as at least 10⁻⁶.
        """
        if self._tree is None:
            raise ValueError("this replay draws uniformly: it has priorities only if config.prioritized is set")
        if not (np.isfinite(priorities).all() and (priorities >= 0).all()):
            raise ValueError(f"priorities must be finite and not negative, got {priorities}: has learning diverged?")
        if indices.size and not 0 <= indices.min() <= indices.max() < self.capacity:
            raise ValueError(f"indices must lie in [0, {self.capacity}), got {indices}")
        ages = (self._rows - 1 - indices // self._num_envs) % self._num_rows
        kept = ages < self._rows - self._oldest_row
        leaves = sum_tree.compute_leaves(priorities[kept], self.config.priority_exponent)
        sum_tree.set_leaves(self._tree, indices[kept], leaves)
        self._largest = max(self._largest, leaves.max(initial=np.float32(0)))

    def state(self) -> dict[str, np.ndarray]:
        """The written part of all arrays, as views, under names that can be file names."""
        count = min(self._rows, self._num_rows)
        state = {name: array[:count] for name, array in self._arrays.items() if name != "tree"}
        for name, written in self._observations.count_written(self._rows).items():
            state[name] = self._observations.arrays[name][:written]
        if self._tree is not None:  # the leaves determine the tree
            leaves = self._tree.size // 2
            state["priorities"] = self._tree[leaves : leaves + count * self._num_envs]
            state["largest_priority"] = np.asarray(self._largest)
        state["rows"] = np.asarray(self._rows, np.int64)
        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on exactly from where `state` was taken, in a replay with the same settings."""
        expected = self.state().keys()
        if state.keys() != expected:
            raise ValueError(f"the state of this replay has the arrays {sorted(expected)}, got {sorted(state)}")
        arrays = self._arrays | self._observations.arrays
        arrays.pop("tree", None)
        for name, array in arrays.items():
            given = state[name]
            if given.dtype != array.dtype or given.shape[1:] != array.shape[1:] or len(given) > len(array):
                raise ValueError(
                    f"{name} is {given.dtype}{given.shape}, which does not fit into {array.dtype}{array.shape}: "
                    "restore into a replay of the same environment, number of environments and settings"
                )
        rows, stored = int(state["rows"]), len(state["action"])
        if stored != min(rows, self._num_rows):
            raise ValueError(f"the state holds {stored} of {rows} rows, a ring of {self._num_rows} rows does not")
        for name, array in arrays.items():
            array[: len(state[name])] = state[name]
        if self._tree is not None:
            leaves, priorities = self._tree.size // 2, state["priorities"]
            self._tree[:] = 0
            self._tree[leaves : leaves + len(priorities)] = priorities
            sum_tree.rebuild(self._tree)
            self._largest = np.float32(state["largest_priority"])
        self._rows = rows
        self._observations.reset_oldest()
        self._oldest_row = self._observations.oldest_row(rows)


def _store(spec: EnvSpec) -> type[PairStore] | type[FrameStore]:
    return PairStore if spec.stacked_frames == 1 else FrameStore


def _layout(spec: EnvSpec, num_envs: int, config: ReplayConfig, num_masked: int) -> Layout:
    """The arrays that are allocated beside those of observations."""
    num_rows = count_rows(spec, num_envs, config)
    rows = (num_rows, num_envs)
    layout: Layout = {
        "action": ((*rows, *spec.action_shape), spec.action_dtype),
        "reward": (rows, "float32"),
        "terminated": (rows, "bool"),
        "truncated": (rows, "bool"),
    }
    if spec.has_mask:
        layout["next_mask"] = ((*rows, spec.num_actions), "bool")
    if num_masked:
        layout["member_mask"] = ((*rows, num_masked), "bool")
    if config.prioritized:
        layout["tree"] = ((2 * sum_tree.count_leaves(num_rows * num_envs),), "float32")
    return layout
