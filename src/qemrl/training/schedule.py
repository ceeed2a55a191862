"""What both loops count: how steps and updates interleave, the randomness of each count, and sums between records.

A run is a sequence of iterations. Updates and steps of an iteration both start from what was there before it: the
parameters that act are those before the iteration's updates, and the updates learn from the transitions before its
steps. So an environment can step while the device learns, and the result does not depend on which is faster.

Every random draw of a run is a pure function of its seed and of a count. So a checkpoint needs no generator's state,
and both loops draw the same numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Integer, UInt32

from qemrl.agents.agent import InspectableAgent
from qemrl.networks.layers import Key

Record = dict[str, Any]
"""What a loop measured of one seed up to a step, by tag."""

Stop = Callable[[], bool]
"""Whether a loop is asked to stop."""


def never() -> bool:
    """Do not stop."""
    return False


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
    """The schedule of one update every `update_every` steps.

    One of `num_envs` and `update_every` must be a multiple of the other. The steps between copies to a target network,
    where there are any, must be a multiple of `num_envs`.
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


def read_schedules(agent: InspectableAgent, schedule: StepSchedule, step: int) -> dict[str, float]:
    """What an agent has scheduled for the iteration that begins at `step`, by tag."""
    now = agent.scheduled(jnp.int32(step), jnp.int32(schedule.updates_until(step)))
    return {tag: float(value) for tag, value in now.items()}


class LoopSettings(NamedTuple):
    """What both loops are told besides agent, environment, replay and seeds."""

    schedule: StepSchedule
    batch_size: int
    clip_rewards: bool
    """Whether rewards that are learned from are clipped to [−1, 1]."""

    evaluation_episodes: int

    evaluation_max_steps: int
    """Where an episode of an evaluation is cut."""


class Keys(NamedTuple):
    """One stream of randomness for each use."""

    init: Key
    """The first weights."""

    act: Key
    """Folded with the number of vector steps: levels, noise and exploration in acting."""

    update: Key
    """Folded with the number of updates: levels and noise in learning."""

    sample: Key
    """Folded with the number of updates: which transitions are learned from."""

    environment: Key
    """Folded with the number of vector steps: what happens in JAX environments."""

    evaluate: Key
    """Folded with the number of steps."""

    @staticmethod
    def from_seed(seed: Integer[Array, ""] | int) -> "Keys":
        """The streams of a seed."""
        return Keys(*jax.random.split(jax.random.key(seed), 6))

    def mask_key(self, count: Int[Array, ""] | int) -> Key:
        """What decides which members learn from the transitions of this vector step."""
        return jax.random.fold_in(jax.random.fold_in(self.act, count), 1)

    def bits(self, updates: Int[Array, ""], batch_size: int) -> UInt32[Array, " batch"]:
        """What decides which transitions an update learns from."""
        return jax.random.bits(jax.random.fold_in(self.sample, updates), (batch_size,), "uint32")


class Accumulator(NamedTuple):
    """Sums since the last record, of one seed."""

    episodes: Int[Array, ""]
    returns: Float[Array, ""]
    lengths: Float[Array, ""]
    updates: Int[Array, ""]
    loss: Float[Array, ""]
    bad_step: Int[Array, ""]
    """The first step with a reward, observation or loss that is not finite; −1 if there was none."""

    @staticmethod
    def empty() -> "Accumulator":
        """Nothing counted yet."""

        def zero(kind: Any) -> Array:  # each in memory of its own, so that all can be donated
            return jnp.zeros((), kind)

        sums = zero(jnp.int32), zero(jnp.float32), zero(jnp.float32), zero(jnp.int32), zero(jnp.float32)
        return Accumulator(*sums, bad_step=jnp.full((), -1, jnp.int32))

    def add_update(self, loss: Float[Array, ""], step: Int[Array, ""]) -> "Accumulator":
        """With one more update."""
        bad = self._first_bad(~jnp.isfinite(loss), step)
        return self._replace(updates=self.updates + 1, loss=self.loss + loss, bad_step=bad)

    def add_step(
        self,
        ended: Bool[Array, " envs"],
        returns: Float[Array, " envs"],
        lengths: Int[Array, " envs"],
        reward: Float[Array, " envs"],
        observation: Any,
        step: Int[Array, ""],
    ) -> "Accumulator":
        """With one more vector step."""
        bad = ~jnp.all(jnp.isfinite(reward))
        if jnp.issubdtype(observation.dtype, jnp.floating):
            bad |= ~jnp.all(jnp.isfinite(observation))
        return self._replace(
            episodes=self.episodes + jnp.sum(ended, dtype=jnp.int32),
            returns=self.returns + jnp.sum(jnp.where(ended, returns, 0.0)),
            lengths=self.lengths + jnp.sum(jnp.where(ended, lengths, 0)).astype(jnp.float32),
            bad_step=self._first_bad(bad, step),
        )

    def _first_bad(self, bad: Bool[Array, ""], step: Int[Array, ""]) -> Int[Array, ""]:
        return jnp.where((self.bad_step < 0) & bad, step, self.bad_step)

    def summarize(self) -> dict[str, Any]:
        """Sums and means by tag, for a record; means over nothing are None."""
        episodes, updates = int(self.episodes), int(self.updates)
        return {
            "rollout/episodes": episodes,
            "rollout/ep_rew_mean": float(self.returns) / episodes if episodes else None,
            "rollout/ep_len_mean": float(self.lengths) / episodes if episodes else None,
            "train/updates": updates,
            "train/loss": float(self.loss) / updates if updates else None,
            "bad_step": int(self.bad_step),
        }
