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
from qemrl.training.randomness import Keys
from qemrl.types import Actions

Act = Callable[..., tuple[Actions, Any]]
"""(params, actor state, view, step, count, key) to actions and the actor state; compiled."""


def make_act(agent: Agent, evaluating: bool) -> Act:
    """The agent's choice in the step that is number `count`, compiled."""

    def act(
        params: Any, actor: Any, view: View, step: Int[Array, ""], count: Int[Array, ""], key: Key
    ) -> tuple[Actions, Any]:
        return agent.act(params, actor, view, step, jax.random.fold_in(key, count), evaluating)

    return jax.jit(act)


def play_hosted(
    act: Act,
    actor: Any,
    params: Any,
    envs: HostEnvs,
    keys: Keys,
    step: int,
    watch: Callable[[HostEnvs], bool] = lambda _: True,
) -> tuple[Float[np.ndarray, " envs"], Int[np.ndarray, " envs"]]:
    """Returns and lengths of an episode in each environment, played side by side.

    Args:
        act: Of `make_act`, in evaluation.
        actor: The state of actor at the start.
        params: What acts.
        envs: Where; they are reset.
        keys: The randomness of the seed.
        step: How many steps were learned for; other episodes are played after other numbers of them.
        watch: Called before each step; False ends all episodes there.
    """
    key = jax.random.fold_in(keys.evaluate, step)
    observation, mask = envs.reset(int(jax.random.bits(key, (), "uint32")))
    returns, lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
    going, count = np.ones(envs.num_envs, bool), 0
    while going.any() and watch(envs):
        view = View(observation, mask, lengths == 0)
        actions, actor = act(params, actor, view, np.int32(step), np.int32(count), key)
        result = envs.step(np.asarray(actions))
        returns += np.where(going, result.reward, 0)
        lengths += going
        going &= ~result.ended
        observation, mask, count = result.observation, result.mask, count + 1
    return returns, lengths


class Play(NamedTuple):
    """Episodes in compiled environments side by side."""

    states: Any
    observation: Any
    actor: Any
    ended: Bool[Array, " episodes"]
    returns: Float[Array, " episodes"]
    lengths: Int[Array, " episodes"]
    steps: Int[Array, ""]


def play_compiled(
    agent: Agent, env: JaxEnv, keys: Keys, params: Any, step: Int[Array, ""], episodes: int
) -> tuple[Float[Array, " episodes"], Int[Array, " episodes"]]:
    """Returns and lengths of episodes, played side by side until the last of them has ended; may be compiled."""
    start_key, play_key = jax.random.split(jax.random.fold_in(keys.evaluate, step))
    states, observation = jax.vmap(env.reset)(jax.random.split(start_key, episodes))

    def going_on(carry: Play) -> Bool[Array, ""]:
        return ~jnp.all(carry.ended)

    def play(carry: Play) -> Play:
        mask = jax.vmap(env.mask)(carry.states) if env.spec.has_mask else None
        view = View(carry.observation, mask, carry.lengths == 0)
        step_keys = jax.random.split(jax.random.fold_in(play_key, carry.steps), episodes + 1)
        action, actor = agent.act(params, carry.actor, view, step, step_keys[0], True)
        outcome = jax.vmap(env.step)(carry.states, action, step_keys[1:])
        live = ~carry.ended
        return Play(
            outcome.state,
            outcome.observation,
            actor,
            carry.ended | outcome.terminated | outcome.truncated,
            carry.returns + jnp.where(live, outcome.reward, 0.0),
            carry.lengths + live.astype(jnp.int32),
            carry.steps + 1,
        )

    start = Play(
        states,
        observation,
        agent.init_actor(episodes),
        jnp.zeros(episodes, bool),
        jnp.zeros(episodes, jnp.float32),
        jnp.zeros(episodes, jnp.int32),
        jnp.int32(0),
    )
    end = jax.lax.while_loop(going_on, play, start)
    return end.returns, end.lengths
