"""Episodes without learning: the evaluation of both loops, which needs parameters and environments but no replay."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from qemrl.agents.agent import Agent, View
from qemrl.envs.gym.host_envs import HostEnvs
from qemrl.envs.jax.env import JaxEnv
from qemrl.networks.layers import Key
from qemrl.training.schedule import Keys
from qemrl.types import Actions

Act = Callable[..., tuple[Actions, Any]]
"""(params, actor state, view, step, count, key) to actions and the actor state; compiled."""


class Evaluation(NamedTuple):
    """The results of episodes played without learning."""

    returns: Float[np.ndarray, " episodes"]
    lengths: Int[np.ndarray, " episodes"]
    seed: int = 0
    """That of the agent that played them."""

    cut: int = 0
    """How many of them were cut after `evaluation_max_steps`, and count as they were then."""

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the returns."""
        return float(self.returns.std())


class Played(NamedTuple):
    """Episodes as they come out of environments, compiled or not."""

    returns: Float[Array | np.ndarray, "*seeds episodes"]
    lengths: Int[Array | np.ndarray, "*seeds episodes"]
    cut: Bool[Array | np.ndarray, "*seeds episodes"]
    """Which of them had not ended."""

    def as_evaluation(self, seed: int) -> Evaluation:
        """The same, of one seed, in the host's memory."""
        return Evaluation(
            np.asarray(self.returns, np.float64), np.asarray(self.lengths, np.int64), seed, int(np.sum(self.cut))
        )

    def as_record(self) -> dict[str, Any]:
        """The same, of one seed, by tag."""
        return {
            "eval/returns": self.returns.tolist(),
            "eval/lengths": self.lengths.tolist(),
            "eval/cut": int(np.sum(self.cut)),
        }


class CutEpisodeWarning(UserWarning):
    """Episodes of an evaluation were cut."""


def describe_cut(evaluation: Evaluation, max_steps: int) -> str:
    """What is to be known where episodes of an evaluation were cut."""
    return (
        f"{evaluation.cut} of {len(evaluation.returns)} evaluation episodes had not ended after {max_steps:,} steps "
        "and were cut there; they count with the return that they had (evaluation_max_steps moves the limit)"
    )


def make_act(agent: Agent, evaluating: bool) -> Act:
    """The agent's choice in the step that is number `count`, compiled."""

    def act(
        params: Any, actor: Any, view: View, step: Int[Array, ""], count: Int[Array, ""], key: Key
    ) -> tuple[Actions, Any]:
        return agent.act(params, actor, view, step, jax.random.fold_in(key, count), evaluating)

    return jax.jit(act)


def play_in_host_envs(
    act: Act,
    actor: Any,
    params: Any,
    envs: HostEnvs,
    keys: Keys,
    step: int,
    max_steps: int,
    watch: Callable[[HostEnvs], bool] = lambda _: True,
) -> Played:
    """An episode in each environment, played side by side.

    Args:
        act: Of `make_act`, in evaluation.
        actor: The state that acting keeps, at the start.
        params: What acts.
        envs: Where; they are reset.
        keys: The randomness of the seed.
        step: How many steps were learned for; other episodes are played after other numbers of them.
        max_steps: Where episodes are cut.
        watch: Called before each step; False ends all episodes there.
    """
    key = jax.random.fold_in(keys.evaluate, step)
    observation, mask = envs.reset(int(jax.random.bits(key, (), "uint32")))
    returns, lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
    running, count = np.ones(envs.num_envs, bool), 0
    while count < max_steps and running.any() and watch(envs):
        view = View(observation, mask, lengths == 0)
        actions, actor = act(params, actor, view, np.int32(step), np.int32(count), key)
        result = envs.step(np.asarray(actions))
        returns += np.where(running, result.reward, 0)
        lengths += running
        running &= ~result.ended
        observation, mask, count = result.observation, result.mask, count + 1
    return Played(returns, lengths, running)


class EvaluationState(NamedTuple):
    """Episodes in progress in JAX environments side by side."""

    states: Any
    observation: Any
    actor: Any
    ended: Bool[Array, " episodes"]
    returns: Float[Array, " episodes"]
    lengths: Int[Array, " episodes"]
    steps: Int[Array, ""]


def play_in_jax_env(
    agent: Agent, env: JaxEnv, keys: Keys, params: Any, step: Int[Array, ""], episodes: int, max_steps: int
) -> Played:
    """Episodes, played side by side until the last of them has ended or is cut; may be compiled."""
    start_key, play_key = jax.random.split(jax.random.fold_in(keys.evaluate, step))
    states, observation = jax.vmap(env.reset)(jax.random.split(start_key, episodes))

    def is_running(now: EvaluationState) -> Bool[Array, ""]:
        return (now.steps < max_steps) & ~jnp.all(now.ended)

    def play(now: EvaluationState) -> EvaluationState:
        mask = jax.vmap(env.mask)(now.states) if env.spec.has_mask else None
        view = View(now.observation, mask, now.lengths == 0)
        step_keys = jax.random.split(jax.random.fold_in(play_key, now.steps), episodes + 1)
        action, actor = agent.act(params, now.actor, view, step, step_keys[0], True)
        outcome = jax.vmap(env.step)(now.states, action, step_keys[1:])
        live = ~now.ended
        return EvaluationState(
            states=outcome.state,
            observation=outcome.observation,
            actor=actor,
            ended=now.ended | outcome.terminated | outcome.truncated,
            returns=now.returns + jnp.where(live, outcome.reward, 0.0),
            lengths=now.lengths + live.astype(jnp.int32),
            steps=now.steps + 1,
        )

    start = EvaluationState(
        states=states,
        observation=observation,
        actor=agent.init_actor(episodes),
        ended=jnp.zeros(episodes, bool),
        returns=jnp.zeros(episodes, jnp.float32),
        lengths=jnp.zeros(episodes, jnp.int32),
        steps=jnp.int32(0),
    )
    end = jax.lax.while_loop(is_running, play, start)
    return Played(end.returns, end.lengths, ~end.ended)
