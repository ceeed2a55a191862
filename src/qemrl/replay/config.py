"""The settings of a replay, and what both kinds of it check."""

import math
from dataclasses import dataclass

from qemrl.types import EnvSpec, Step

LARGEST_N_STEP = 1_000
"""Every step of a return is an operation of its own in the program that draws batches."""


@dataclass(frozen=True)
class ReplayConfig:
    """Settings of a replay."""

    capacity: int = 100_000
    """How many transitions are kept, of all environments together; the oldest make room for new ones."""

    n_step: int = 1
    """Over how many steps rewards are summed before bootstrapping; fewer where an episode ends."""

    prioritized: bool = False
    """Whether transitions are drawn in proportion to their priorities instead of uniformly."""

    priority_exponent: float = 0.6
    """α: transitions are drawn in proportion to priority^α; zero draws uniformly."""

    importance_exponent: float = 0.5
    """β: how far importance weights make up for drawing by priority; one makes up for it entirely."""

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {self.capacity}")
        if not 1 <= self.n_step <= LARGEST_N_STEP:
            raise ValueError(f"n_step must be at least 1 and at most {LARGEST_N_STEP:,}, got {self.n_step}")
        for name in ("priority_exponent", "importance_exponent"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")


def count_rows(spec: EnvSpec, num_envs: int, config: ReplayConfig) -> int:
    """The rows of the ring, T = capacity // envs; each holds one transition of each environment."""
    if num_envs < 1:
        raise ValueError(f"the number of environments must be at least 1, got {num_envs}")
    if spec.stacked_frames < 1:
        raise ValueError(f"stacked_frames must be at least 1, got {spec.stacked_frames} for {spec.id}")
    rows = config.capacity // num_envs
    if rows < config.n_step:
        raise ValueError(
            f"a capacity of {config.capacity} for {num_envs} environments makes {rows} rows, fewer than "
            f"n_step={config.n_step}: raise the capacity to at least {config.n_step * num_envs}"
        )
    if rows * num_envs >= 2**31:
        raise ValueError(f"a capacity of {config.capacity} is too large: flat indices must stay below 2**31")
    return rows


def check_step(step: Step, spec: EnvSpec, num_envs: int, num_masked: int) -> None:
    """Raise unless a step has the masks and the actions that are stored: other shapes might be stretched."""
    masked = None if step.member_mask is None else step.member_mask.shape
    if masked != ((num_envs, num_masked) if num_masked else None):
        raise ValueError(
            f"this replay stores masks of {num_masked} members for each of {num_envs} environments, and the step has "
            f"{'none' if masked is None else f'one of shape {masked}'}"
        )
    if spec.has_mask and step.next_mask is None:
        raise ValueError(f"{spec.id} says which actions are allowed (has_mask), but the step has no next_mask")
    if step.next_mask is not None and not spec.has_mask:
        raise ValueError(f"{spec.id} allows all actions (has_mask is not set), but the step has a next_mask")
    shape = (num_envs, *spec.action_shape)
    if step.action.shape != shape:
        raise ValueError(f"actions of {spec.id} must be {shape}, got {step.action.shape}")
