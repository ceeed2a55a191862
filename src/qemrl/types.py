"""What flows between environments, replay, agents and loops.

Axes, in this order where they occur: `time`, `batch` (or `envs`, environments side by side), `members` (heads of an
ensemble; one for most agents), `actions`, `n` (quantiles or atoms).
"""

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
    """Finite lower bounds of a vector observation, with `observation_high`; None where there are none."""

    observation_high: tuple[float, ...] | None = None

    num_states: int | None = None
    """How many observations there are, if they are discrete: each is one-hot."""

    box: ActionBox | None = None
    """Where continuous actions lie; None where actions are discrete, from 0 to `num_actions` − 1."""

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Of one action."""
        return () if self.box is None else self.box.shape

    @property
    def action_dtype(self) -> str:
        """A NumPy dtype name: `int32` for discrete actions, `float32` for continuous ones."""
        return "int32" if self.box is None else "float32"
