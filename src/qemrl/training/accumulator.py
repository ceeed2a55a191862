"""What a loop counts between two records."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


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

    def learned(self, loss: Float[Array, ""], step: Int[Array, ""]) -> "Accumulator":
        """With one more update."""
        bad = self._first_bad(~jnp.isfinite(loss), step)
        return self._replace(updates=self.updates + 1, loss=self.loss + loss, bad_step=bad)

    def stepped(
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

    def numbers(self) -> dict[str, Any]:
        """What a record says of them, by tag; means over nothing are None."""
        episodes, updates = int(self.episodes), int(self.updates)
        return {
            "rollout/episodes": episodes,
            "rollout/ep_rew_mean": float(self.returns) / episodes if episodes else None,
            "rollout/ep_len_mean": float(self.lengths) / episodes if episodes else None,
            "train/updates": updates,
            "train/loss": float(self.loss) / updates if updates else None,
            "bad_step": int(self.bad_step),
        }
