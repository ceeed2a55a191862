"""How steps and updates interleave, the same in both loops.

A run is a sequence of iterations. Updates and steps of an iteration both start from what was there before it: the
parameters that act are those before the iteration's updates, and the updates learn from the transitions before its
steps. So an environment can step while the device learns, and the result does not depend on which is faster.
"""

from typing import NamedTuple


class StepSchedule(NamedTuple):
    """Vector steps and updates in an iteration."""

    num_envs: int
    vector_steps: int
    updates: int
    first_update: int
    """The number of steps before the first iteration with updates."""

    @property
    def steps(self) -> int:
        """Agent steps in an iteration."""
        return self.num_envs * self.vector_steps

    def whole(self, steps: int) -> int:
        """The number of steps, rounded up to whole iterations."""
        return -(-steps // self.steps) * self.steps

    def updates_until(self, steps: int) -> int:
        """How many updates there are in the first `steps` steps."""
        return max(0, steps - self.first_update) // self.steps * self.updates


def make_step_schedule(
    num_envs: int, update_every: int, target_every: int | None, learning_starts: int, batch_size: int
) -> StepSchedule:
    """The schedule of one update every `update_every` steps; environments and updates must fit into one another.

    So must the steps between copies to a target network, where there are any.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    if update_every % num_envs and num_envs % update_every:
        raise ValueError(
            f"{num_envs} environments do not fit an update every {update_every} steps: "
            "one must be a multiple of the other"
        )
    if target_every is not None and target_every % num_envs:
        raise ValueError(f"target_every must be a multiple of the {num_envs} environments, got {target_every}")
    schedule = StepSchedule(num_envs, max(1, update_every // num_envs), max(1, num_envs // update_every), 0)
    return schedule._replace(first_update=schedule.whole(max(learning_starts, batch_size)))
