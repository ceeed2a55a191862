"""Exploration by an ensemble: one of its heads acts for a whole episode, as in Bootstrapped DQN."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qemrl.distributional.representation import Representation
from qemrl.exploration.epsilon_greedy import (
    ActionContext,
    Exploration,
    argmax_action,
    check_probabilities,
    greedy_action,
    mask_q,
    mix_random,
)
from qemrl.networks.layers import Key
from qemrl.types import EnvSpec

Heads = Int[Array, " envs"]


@dataclass(frozen=True)
class HeadSampling(Exploration):
    """The greedy action of one head, drawn at the start of each episode (Osband et al., 2016)."""

    evaluate_by: Literal["vote", "mean", "head"] = "vote"
    """Evaluation takes the action that most heads prefer, of equals the one with the largest mean Q; or the action with
    the largest mean Q; or, to see what a single head has learned, acts as in training."""

    epsilon: float = 0.0
    """The probability of a random action in training."""

    evaluation: float = 0.001
    """That in evaluation."""

    def __post_init__(self) -> None:
        check_probabilities(self, "epsilon", "evaluation")
        if self.evaluate_by not in ("vote", "mean", "head"):
            raise ValueError(f"evaluate_by must be vote, mean or head, got {self.evaluate_by!r}")

    def init(self, num_envs: int, spec: EnvSpec) -> Heads:
        """The head that acts in each environment; it is drawn when an episode begins."""
        del spec
        return jnp.zeros(num_envs, jnp.int32)

    def select_action(
        self, state: Heads, context: ActionContext, key: Key, evaluating: bool
    ) -> tuple[Int[Array, " batch"], Heads]:
        """Actions, and the heads from here on."""
        head_key, action_key = jax.random.split(key)
        epsilon = jnp.float32(self.evaluation if evaluating else self.epsilon)
        if evaluating and self.evaluate_by != "head":
            actions = greedy_action(context) if self.evaluate_by == "mean" else vote(context)
            return mix_random(epsilon, context, actions, action_key), state
        drawn = jax.random.randint(head_key, state.shape, 0, context.q.shape[1], jnp.int32)
        heads = jnp.where(context.first, drawn, state)
        scores = jnp.take_along_axis(context.q, heads[:, None, None], axis=1)[:, 0]
        return mix_random(epsilon, context, argmax_action(scores, context.mask), action_key), heads

    def scheduled(self, step: Int[Array, ""], learning_starts: int) -> dict[str, Float[Array, ""]]:
        """The probability of a random action."""
        del step, learning_starts
        return {"explore/epsilon": jnp.float32(self.epsilon)}

    def check_compatible(self, representation: Representation) -> None:
        """Raise unless there are several heads."""
        if representation.num_members < 2:
            kind = type(representation).__name__
            raise ValueError(f"HeadSampling draws one of several heads, and {kind} has one; use Bootstrapped with it")


def vote(context: ActionContext) -> Int[Array, " batch"]:
    """The allowed action that is the greedy one of most heads; of equals, the one with the largest mean Q."""
    mask = None if context.mask is None else jnp.broadcast_to(context.mask[:, None], context.q.shape)
    choices = jnp.argmax(mask_q(context.q, mask), axis=-1)
    votes = jnp.sum(jax.nn.one_hot(choices, context.q.shape[-1], dtype=jnp.float32), axis=1)
    most = votes == jnp.max(votes, axis=-1, keepdims=True)
    return argmax_action(jnp.mean(context.q, axis=1), most)
