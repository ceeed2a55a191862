"""A JAX environment behind Gymnasium's interface, for loops and tools that know only that.

Importing this module registers all JAX environments with Gymnasium: `probe/1` is `qemrl/probe-1-v0`,
`jax/cartpole` is `qemrl/cartpole-v0`, `minatar/breakout` is `qemrl/minatar-breakout-v0`. With
`gymnasium.make("qemrl.envs.gym.jax_adapter:qemrl/cartpole-v0")` Gymnasium imports it by itself.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, UInt32

from qemrl.envs.jax.env import Action, EnvState, JaxEnv, Outcome
from qemrl.envs.jax.registry import JAX_ENVS, make_jax_env
from qemrl.types import EnvSpec


class JaxEnvAdapter(gymnasium.Env[np.ndarray, np.int64 | np.ndarray]):
    """One JAX environment as a Gymnasium environment.

    Call number k of `reset` or `step` since the last seeding, counted from zero, uses the key
    `jax.random.fold_in(env.key, k)` with `env.key = seed_key(seed)`: the JAX environment does the same when it is
    driven with these keys. `state`, `key` and `calls` are all that it remembers; set them to go on from there.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - Gymnasium's own convention

    def __init__(self, env: JaxEnv, render_mode: str | None = None):
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode {render_mode!r} is not offered: choose 'rgb_array' or None")
        self.jax_env = env
        self.render_mode = render_mode
        self.observation_space = _observation_space(env.spec)
        self.action_space = _action_space(env.spec)
        self.key: PRNGKeyArray | None = None
        self.calls = 0
        self.state: EnvState = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The first observation of an episode, and the action mask, if there is one, as `action_mask`."""
        if options:
            raise ValueError(f"reset options {options!r} are not offered: leave them out")
        super().reset(seed=seed)
        if seed is not None or self.key is None:
            self.calls = 0
            self.key = seed_key(int(self.np_random.integers(2**32)) if seed is None else seed)
        self.state, observation = _programs(self.jax_env)[0](self.key, self._next_call())
        return np.array(observation), self._info()

    def step(self, action: np.int64 | int | np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """The next observation, the reward, whether the episode terminated or was truncated, and the action mask."""
        if self.state is None:
            raise ValueError("step before the first reset: call reset")
        checked = _check_action(action, self.jax_env.spec)
        outcome = _programs(self.jax_env)[1](self.key, self._next_call(), self.state, checked)
        self.state = outcome.state
        observation = np.array(outcome.observation)
        return observation, float(outcome.reward), bool(outcome.terminated), bool(outcome.truncated), self._info()

    def render(self) -> np.ndarray | None:
        """A picture of the state, if the render mode is `rgb_array`."""
        if self.state is None:
            raise ValueError("render before the first reset: call reset")
        return None if self.render_mode is None else self.jax_env.draw(self.state)

    def _next_call(self) -> np.uint32:
        self.calls += 1
        return np.uint32(self.calls - 1)

    def _info(self) -> dict[str, Any]:
        mask = self.jax_env.mask(self.state)
        return {} if mask is None else {"action_mask": np.array(mask)}


def seed_key(seed: int) -> PRNGKeyArray:
    """The key of a seed: `jax.random.key(seed)` below 2³², and for larger ones, which that function cuts, all bits."""
    key = jax.random.key(seed % 2**32)
    while seed := int(seed) >> 32:
        key = jax.random.fold_in(key, np.uint32(seed % 2**32))
    return key


def gymnasium_id(env_id: str) -> str:
    """The Gymnasium id under which a JAX environment is registered."""
    return f"qemrl/{env_id.removeprefix('jax/').replace('/', '-')}-v0"


def make_adapter(env_id: str, render_mode: str | None = None) -> JaxEnvAdapter:
    """The JAX environment of an id behind Gymnasium's interface; what Gymnasium calls."""
    return JaxEnvAdapter(make_jax_env(env_id), render_mode)


def register() -> None:
    """Make all JAX environments known to Gymnasium; those that are known already stay as they are."""
    for env_id in JAX_ENVS:
        name = gymnasium_id(env_id)
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point="qemrl.envs.gym.jax_adapter:make_adapter", kwargs={"env_id": env_id})


def _observation_space(spec: EnvSpec) -> gymnasium.spaces.Box:
    dtype = np.dtype(spec.observation_dtype)
    if dtype.kind == "b":
        return gymnasium.spaces.Box(0, 1, spec.observation_shape, np.bool_)  # type: ignore[arg-type]
    if spec.observation_low is None or spec.observation_high is None:
        return gymnasium.spaces.Box(-np.inf, np.inf, spec.observation_shape, dtype.type)
    return gymnasium.spaces.Box(
        np.array(spec.observation_low, dtype), np.array(spec.observation_high, dtype), dtype=dtype.type
    )


def _action_space(spec: EnvSpec) -> gymnasium.spaces.Discrete | gymnasium.spaces.Box:
    if spec.box is None:
        return gymnasium.spaces.Discrete(spec.num_actions)
    low, high = (np.array(bound, np.float32).reshape(spec.box.shape) for bound in (spec.box.low, spec.box.high))
    return gymnasium.spaces.Box(low, high, dtype=np.float32)


def _check_action(action: np.int64 | int | np.ndarray, spec: EnvSpec) -> np.ndarray | np.int32:
    """The action in the dtype that the JAX environment takes, if it is one of its actions."""
    if spec.box is None:
        if not 0 <= action < spec.num_actions:
            raise ValueError(f"action {action} is none of 0 to {spec.num_actions - 1}")
        return np.int32(action)
    checked = np.asarray(action, np.float32)
    if checked.shape != spec.box.shape:
        raise ValueError(f"action {action} has the shape {checked.shape}, actions of {spec.id} {spec.box.shape}")
    low, high = np.array(spec.box.low, np.float32), np.array(spec.box.high, np.float32)
    if not ((low <= checked.reshape(-1)) & (checked.reshape(-1) <= high)).all():
        raise ValueError(f"action {action} is not within {spec.box.low} and {spec.box.high}: clip it")
    return checked


@lru_cache(maxsize=64)
def _programs(env: JaxEnv) -> tuple[Callable[..., tuple[EnvState, Array]], Callable[..., Outcome]]:
    """The compiled reset and step, shared by all adapters of an environment."""

    def reset(key: PRNGKeyArray, call: UInt32[Array, ""]) -> tuple[EnvState, Array]:
        return env.reset(jax.random.fold_in(key, call))

    def step(key: PRNGKeyArray, call: UInt32[Array, ""], state: EnvState, action: Action) -> Outcome:
        return env.step(state, jnp.asarray(action, env.spec.action_dtype), jax.random.fold_in(key, call))

    return jax.jit(reset), jax.jit(step)


register()
