"""What Gymnasium environments side by side show at a reset and after a step."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

Mask = Bool[np.ndarray, "envs actions"] | None
"""The actions allowed in each environment; None where all are allowed always."""


class HostReset(NamedTuple):
    """What environments show first."""

    observation: np.ndarray
    """[envs, ...]"""

    mask: Mask
    """The actions allowed there."""


class HostStep(NamedTuple):
    """What followed an action in each environment."""

    reward: Float[np.ndarray, " envs"]
    terminated: Bool[np.ndarray, " envs"]
    """Whether nothing follows: the end of an episode, or a lost life where the Atari protocol says so."""

    truncated: Bool[np.ndarray, " envs"]
    next_observation: np.ndarray
    """[envs, ...]: the true next one, also where an episode ended."""

    observation: np.ndarray
    """[envs, ...]: to act on next; the first of the new episode where one ended."""

    mask: Mask
    """The actions allowed in `observation`."""

    next_mask: Mask
    """The actions allowed in `next_observation`; all where it is terminal."""

    valid: Bool[np.ndarray, " envs"]
    """False where nothing happened but a reset, in vector environments that reset in a step of its own: such a row must
    not enter replay, and its action did not count."""

    ended: Bool[np.ndarray, " envs"]
    """Whether the environment's own episode is over, so that its return is complete; unlike `terminated` never for a
    lost life."""

    restarted: Bool[np.ndarray, " envs"]
    """Whether `observation` does not continue `next_observation`: frames are stacked anew from here."""
