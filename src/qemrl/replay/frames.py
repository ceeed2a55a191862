"""Where a host replay keeps observations: side by side, or as single frames of which observations are stacks."""

import numpy as np
from jaxtyping import Bool, Int, Shaped

from qemrl.types import EnvSpec, Step

Layout = dict[str, tuple[tuple[int, ...], str]]
"""The shape and the dtype of each array."""


class PairStore:
    """Observations and next observations side by side, in the dtype of the environment."""

    def __init__(self, spec: EnvSpec, num_envs: int, num_rows: int):
        self.arrays = {name: np.zeros(*each) for name, each in self.layout(spec, num_envs, num_rows).items()}
        self._observation = self.arrays["observation"]
        self._next_observation = self.arrays["next_observation"]
        self._flat = {name: array.reshape(-1, *spec.observation_shape) for name, array in self.arrays.items()}
        self._num_rows = num_rows

    @staticmethod
    def layout(spec: EnvSpec, num_envs: int, num_rows: int) -> Layout:
        """The arrays that are allocated."""
        shape = (num_rows, num_envs, *spec.observation_shape)
        return dict.fromkeys(("observation", "next_observation"), (shape, spec.observation_dtype))

    def write(self, row: int, step: Step) -> None:
        """Store the observations of the `row`-th step."""
        position = row % self._num_rows
        self._observation[position] = step.observation
        self._next_observation[position] = step.next_observation

    def observation(self, indices: Int[np.ndarray, " batch"]) -> Shaped[np.ndarray, "batch ..."]:
        """The observations of transitions."""
        return self._flat["observation"].take(indices, axis=0)

    def next_observation(self, indices: Int[np.ndarray, " batch"]) -> Shaped[np.ndarray, "batch ..."]:
        """The next observations of transitions."""
        return self._flat["next_observation"].take(indices, axis=0)

    def oldest_row(self, rows: int) -> int:
        """The oldest of the `rows` written so far that can still be read."""
        return max(0, rows - self._num_rows)

    def count_written(self, rows: int) -> dict[str, int]:
        """How much of each array has been written, along its first axis."""
        return dict.fromkeys(self.arrays, min(rows, self._num_rows))

    def reset_oldest(self) -> None:
        """The arrays are all there is to restore."""

    def end_episodes(self, envs: Bool[np.ndarray, " envs"]) -> None:
        """Each row stands for itself: there is nothing to do."""


class FrameStore:
    """Stacks of k frames, each frame stored once.

    Each environment has a ring of frames. A transition points at the newest frame of its observation; the frame after
    that is the newest of its next observation. Its depth says how many of the k frames belong to the episode: the
    frames before are the episode's first one, repeated, as `FrameStackObservation` of Gymnasium pads. Where an episode
    begins with a stack of different frames, all k of them are stored.

    An episode of m steps takes m + 1 frames, and a ring of frames has about 1.05 slots for each row of transitions. So
    if episodes are shorter than 20 steps on average, the frames of the oldest rows are overwritten before the rows are;
    such rows leave the replay early, for all environments at once, and draws are from the rows that remain.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, num_rows: int):
        self.arrays = {name: np.zeros(*each) for name, each in self.layout(spec, num_envs, num_rows).items()}
        self._frames = self.arrays["frames"]
        self._pointers = self.arrays["pointers"]
        self._depths = self.arrays["depths"]
        self._heads = self.arrays["heads"]
        self._starting = self.arrays["starting"]
        self._starting[:] = True
        self._num_envs, self._num_rows = num_envs, num_rows
        self._num_slots = self._frames.shape[0]
        self._flat_frames = self._frames.reshape(-1, *self._frames.shape[2:])
        self._flat_pointers, self._flat_depths = self._pointers.reshape(-1), self._depths.reshape(-1)
        self._stack = spec.stacked_frames
        self._back = np.arange(self._stack - 1, -1, -1)
        self._oldest = 0

    @staticmethod
    def layout(spec: EnvSpec, num_envs: int, num_rows: int) -> Layout:
        """The arrays that are allocated."""
        stack = spec.stacked_frames
        if spec.observation_shape[:1] != (stack,) or stack > 255:
            raise ValueError(
                f"the first axis of an observation must hold the {stack} stacked frames (at most 255), "
                f"got the shape {spec.observation_shape} for {spec.id}"
            )
        slots = num_rows + num_rows // 20 + 2 * stack  # a twentieth for the additional frame of each episode
        return {
            "frames": ((slots, num_envs, *spec.observation_shape[1:]), spec.observation_dtype),
            "pointers": ((num_rows, num_envs), "int64"),
            "depths": ((num_rows, num_envs), "uint8"),
            "heads": ((num_envs,), "int64"),
            "starting": ((num_envs,), "bool"),
        }

    def write(self, row: int, step: Step) -> None:
        """Store the new frames of the `row`-th step."""
        position, before = row % self._num_rows, (row - 1) % self._num_rows
        for env in range(self._num_envs):
            if self._starting[env]:
                depth = self._start_episode(env, step.observation[env])
            else:
                depth = min(int(self._depths[before, env]) + 1, self._stack)
            self._pointers[position, env] = self._heads[env] - 1
            self._depths[position, env] = depth
            self._append(env, step.next_observation[env][-1])
        np.logical_or(step.terminated, step.truncated, out=self._starting)

    def _start_episode(self, env: int, observation: Shaped[np.ndarray, "..."]) -> int:
        """Store the first observation of an episode; how many frames it took."""
        if (observation[1:] == observation[0]).all():
            self._append(env, observation[0])
            return 1
        for frame in observation:
            self._append(env, frame)
        return self._stack

    def _append(self, env: int, frame: Shaped[np.ndarray, "..."] | np.generic) -> None:
        head = int(self._heads[env])
        self._frames[head % self._num_slots, env] = frame
        self._heads[env] = head + 1

    def observation(self, indices: Int[np.ndarray, " batch"]) -> Shaped[np.ndarray, "batch ..."]:
        """The observations of transitions."""
        return self._read(indices, self._flat_pointers[indices], self._flat_depths[indices].astype(np.int64))

    def next_observation(self, indices: Int[np.ndarray, " batch"]) -> Shaped[np.ndarray, "batch ..."]:
        """The next observations of transitions."""
        return self._read(indices, self._flat_pointers[indices] + 1, self._flat_depths[indices] + np.int64(1))

    def _read(
        self, indices: Int[np.ndarray, " batch"], pointers: Int[np.ndarray, " batch"], depths: Int[np.ndarray, " batch"]
    ) -> Shaped[np.ndarray, "batch ..."]:
        slots = (pointers[:, None] - np.minimum(self._back, depths[:, None] - 1)) % self._num_slots
        return self._flat_frames.take(slots * self._num_envs + (indices % self._num_envs)[:, None], axis=0)

    def oldest_row(self, rows: int) -> int:
        """The oldest of the `rows` written so far of which all frames are still there."""
        oldest = max(self._oldest, rows - self._num_rows)
        while oldest < rows and self._is_overwritten(oldest % self._num_rows):
            oldest += 1
        self._oldest = oldest
        return oldest

    def _is_overwritten(self, position: int) -> bool:
        kept_from = self._heads - self._num_slots
        return bool((self._pointers[position] - self._depths[position] + 1 < kept_from).any())

    def count_written(self, rows: int) -> dict[str, int]:
        """How much of each array has been written, along its first axis."""
        count, envs = min(rows, self._num_rows), self._num_envs
        frames = min(int(self._heads.max()), self._num_slots)
        return {"frames": frames, "pointers": count, "depths": count, "heads": envs, "starting": envs}

    def end_episodes(self, envs: Bool[np.ndarray, " envs"]) -> None:
        """Let the next step of some environments begin an episode."""
        self._starting |= envs

    def reset_oldest(self) -> None:
        """Search for the oldest row from the start again, because other arrays were restored."""
        self._oldest = 0
