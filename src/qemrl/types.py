"""What flows between environments, replay, agents and loops.

Axes, in this order where they occur: `time`, `batch` (or `envs`, environments side by side), `members` (heads of an
ensemble; one for most agents), `actions`, `n` (quantiles or atoms).
"""

import math
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int

Array = Any
"""A NumPy or a JAX array: these records are used on the host and on the device."""


class ReturnDist(NamedTuple):
    """Return distributions: values, the level that each stands at, and the probability that each stands for."""

    values: Float[Array, "*batch n"]
    """Quantiles θ or atoms."""

    levels: Float[Array, "*shared n"]
    """One set for all, (n,), or with the axes of the values and size one where levels are shared."""

    probs: Float[Array, "*shared n"] | None = None
    """Of the shape of the levels; None where each value stands for 1/n."""


Actions = Int[Array, " envs"] | Float[Array, "envs ..."]
"""Indices of discrete actions, or continuous actions in the environment's own units."""


class Step(NamedTuple):
    """What happened in environments side by side, as it enters replay."""

    observation: Array
    """[envs, ...]: what the action was chosen from."""

    action: Actions
    reward: Float[Array, " envs"]
    terminated: Bool[Array, " envs"]
    truncated: Bool[Array, " envs"]
    next_observation: Array
    """[envs, ...]: the true next one, also where an episode ended."""

    next_mask: Bool[Array, "envs actions"] | None = None
    """The actions allowed in the next observation; None where the environment always allows all."""

    member_mask: Bool[Array, "envs members"] | None = None
    """Which members of an ensemble learn from this; None where all do."""


class Batch(NamedTuple):
    """Transitions to learn from; n-step returns and terminations are folded into reward and discount."""

    observation: Array
    action: Actions
    reward: Float[Array, " batch"]
    """R = Σ_{i<m} γ^i r_i, m ≤ n."""

    discount: Float[Array, " batch"]
    """γ^m · (1 − terminated): what the value of the next observation is multiplied by."""

    next_observation: Array
    next_mask: Bool[Array, "batch actions"] | None
    weight: Float[Array, " batch"]
    """The importance weight of prioritized replay; one where sampling is uniform."""

    member_mask: Bool[Array, "batch members"] | None = None
    """Which members of an ensemble learn from each transition; None where all do."""


class UnsupportedEnvironment(ValueError):  # noqa: N818 - what it is, not that it is an error
    """An environment whose observations or actions an agent cannot take."""


class ActionBox(NamedTuple):
    """Where continuous actions lie. Outside of agents actions are in these units, whatever an agent uses inside."""

    shape: tuple[int, ...]
    """Of one action."""

    low: tuple[float, ...]
    """The lower bound of each component, all finite, in the order of a flat action."""

    high: tuple[float, ...]
    """The upper bound of each component."""


class Part(NamedTuple):
    """A part of an observation: an array or numbers that a Dict or a Tuple holds, or all there is."""

    path: tuple[Any, ...]
    """The keys and places that lead to it, from the outside in; empty where it is all there is."""

    shape: tuple[int, ...]
    """As the environment gives it."""

    dtype: str
    """A NumPy dtype name: `float32`, `uint8` or `bool`."""

    low: tuple[float, ...] | None = None
    """Finite lower bounds, with `high`: of each component, or one for all pixels of an image; None without any."""

    high: tuple[float, ...] | None = None

    sizes: tuple[int, ...] = ()
    """How many values each number has, where numbers are shown as one-hot vectors one behind the other."""

    starts: tuple[int, ...] = ()
    """The smallest value of each such number."""

    frames: int = 1
    """How many frames the first axis stacks; one means no stacking."""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """As agents read it."""
        return (sum(self.sizes),) if self.sizes else self.shape

    @property
    def num_components(self) -> int:
        """How many numbers agents read."""
        return math.prod(self.stored_shape)

    @property
    def num_bytes(self) -> int:
        """How many bytes these take."""
        return self.num_components * (4 if self.dtype == "float32" else 1)

    @property
    def channel_axes(self) -> tuple[int, ...] | None:
        """Which axes of an image are channels, stacked frames among them; None where this is no image.

        Images have three axes, of bytes also two, and before them perhaps an axis of frames. Of the first and the last
        axis the shorter one is the channels'; if they are equally long, the last.
        """
        stacked = self.frames > 1 or len(self.stored_shape) == 4
        frame, lead = self.stored_shape[stacked:], (0,) * stacked
        if len(frame) == 3:
            return (*lead, stacked + (0 if frame[0] < frame[2] else 2))
        return lead if len(frame) == 2 and self.dtype == "uint8" else None

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Rows, columns and channels, if this is an image."""
        if self.channel_axes is None:
            return None
        rows, columns = (size for axis, size in enumerate(self.stored_shape) if axis not in self.channel_axes)
        return rows, columns, math.prod(self.stored_shape[axis] for axis in self.channel_axes)


class EnvSpec(NamedTuple):
    """What an agent and a replay must know of an environment."""

    id: str
    observation_shape: tuple[int, ...]
    observation_dtype: str
    """A NumPy dtype name: `float32`, `uint8` or `bool`."""

    num_actions: int
    """How many there are to choose from; zero where actions are continuous."""

    has_mask: bool = False
    """Whether the environment says which actions are allowed."""

    stacked_frames: int = 1
    """How many frames the first axis of an observation stacks, each of which is stored once; one means no stacking."""

    observation_low: tuple[float, ...] | None = None
    """Finite lower bounds, with `observation_high`: of each component, or one for all pixels of an image; None where
    there are none."""

    observation_high: tuple[float, ...] | None = None

    num_states: int | None = None
    """How many observations there are, if they are discrete: each is one-hot."""

    box: ActionBox | None = None
    """Where continuous actions lie; None where actions are discrete, from 0 to `num_actions` − 1."""

    action_start: int = 0
    """What the environment calls the first of its discrete actions; here all count from 0."""

    parts: tuple[Part, ...] = ()
    """What an observation is put together from, unless it is an array as it comes.

    Several parts are a vector: of float32, or of the bytes of all parts if there is an image of bytes among them.
    """

    @property
    def sections(self) -> tuple[Part, ...]:
        """What a network reads: the parts, or all of the observation as one."""
        if len(self.parts) > 1:
            return self.parts
        low, high = self.observation_low, self.observation_high
        return (Part((), self.observation_shape, self.observation_dtype, low, high, frames=self.stacked_frames),)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Of one action."""
        return () if self.box is None else self.box.shape

    @property
    def action_dtype(self) -> str:
        """A NumPy dtype name: `int32` for discrete actions, `float32` for continuous ones."""
        return "int32" if self.box is None else "float32"
