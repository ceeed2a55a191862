"""Environments that a program hands over: an environment, a function that makes one, or a vector environment."""

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from qemrl.envs.gym.in_process import InProcessEnvs
from qemrl.types import UnsupportedEnvironment

Given = gymnasium.Env | VectorEnv | Callable[..., gymnasium.Env]

Wrap = Callable[[gymnasium.Env], gymnasium.Env]
"""What is put around every single environment."""


class GivenEnvs:
    """An environment that was handed over, and more of its kind.

    A function is called for each environment. An environment is itself the first one to learn in; all others, and
    those of evaluations, are copies of it as it was then. A vector environment is for learning, and evaluations make
    environments by its first function. Where there is none, or something cannot be copied, `evaluation` says what to
    evaluate in.

    Attributes:
        name: What the environment is called: its id, if it is registered with Gymnasium, else its class.
        num_envs: How many environments there are side by side; None where there can be any number.
    """

    def __init__(self, given: Given, kwargs: Mapping[str, Any], evaluation: Given | None = None) -> None:
        if not isinstance(given, gymnasium.Env | VectorEnv) and not callable(given):
            raise UnsupportedEnvironment(
                f"an environment is an id of Gymnasium, a gymnasium.Env, a function that makes one, or a "
                f"gymnasium.vector.VectorEnv; got {given!r}"
            )
        if kwargs and isinstance(given, gymnasium.Env | VectorEnv):
            raise ValueError(
                f"{given!r} is made already, so env_kwargs={dict(kwargs)!r} come too late; "
                "give its class or a function instead, or leave them out"
            )
        self._vector = given if isinstance(given, VectorEnv) else None
        self._env = given if isinstance(given, gymnasium.Env) else None
        self._function = None if self._vector or self._env else partial(given, **kwargs)  # type: ignore[arg-type]
        self._evaluation = None if evaluation is None else GivenEnvs(evaluation, {})
        # The first environment tells what it is called; copies are made from a copy that nobody steps.
        self._first = self._env if self._function is None else _check(self._function(), self._function)
        self._original = None if self._env is None else _copy(self._env)
        self.num_envs: int | None = None if self._vector is None else self._vector.num_envs
        self.name = _name(given if self._first is None else self._first)

    def training(self, num_envs: int, asynchronous: bool, wrap: Wrap) -> InProcessEnvs | VectorEnv:
        """Environments to learn in."""
        if self._vector is not None:
            if num_envs != self._vector.num_envs:
                raise ValueError(
                    f"the vector environment of {self.name} has {self._vector.num_envs} environments; got "
                    f"num_envs={num_envs}"
                )
            return self._vector
        if asynchronous:
            if self._function is None:
                raise ValueError(
                    f"{self.name} was given as an environment, which cannot move to another process; give the function "
                    "that makes it instead, or leave `asynchronous` out"
                )
            function = partial(_make_wrapped, self._function, wrap)
            # a server that forks, because the threads of JAX do not survive a fork of this process
            return AsyncVectorEnv([function] * num_envs, context="forkserver", autoreset_mode=AutoresetMode.DISABLED)
        first, self._first = self._first, None
        spare = iter([] if first is None else [first])
        return InProcessEnvs(lambda: wrap(next(spare, None) or self._make(False)), num_envs)

    def evaluation(self, count: int, render: bool, wrap: Wrap) -> InProcessEnvs | VectorEnv:
        """Environments to evaluate in, none of which is stepped by training."""
        if self._evaluation is not None:
            return self._evaluation.evaluation(count, render, wrap)
        return InProcessEnvs(lambda: wrap(self._make(render)), count)

    def _make(self, render: bool) -> gymnasium.Env:
        """One more environment."""
        if self._function is not None:
            takes = render and "render_mode" in inspect.signature(self._function).parameters
            env = self._function(render_mode="rgb_array") if takes else self._function()
            return _check(env, self._function)
        if self._vector is not None:
            if not isinstance(self._vector, SyncVectorEnv | AsyncVectorEnv):  # wrappers may change what is seen
                raise ValueError(
                    f"{type(self._vector).__name__} of {self.name} cannot be made again to evaluate in; give an "
                    "environment for that: qemrl.make(…, evaluation_env=…)"
                )
            return self._vector.env_fns[0]()
        if self._original is None:
            raise ValueError(
                f"{self.name} was given as an environment that cannot be copied; give a function that makes it "
                "(env=lambda: …), or another one to evaluate in (evaluation_env=…)"
            )
        return copy.deepcopy(self._original)


def _make_wrapped(function: Callable[[], gymnasium.Env], wrap: Wrap) -> gymnasium.Env:
    return wrap(_check(function(), function))


def _check(env: Any, function: Any) -> gymnasium.Env:
    if isinstance(env, gymnasium.Env):
        return env
    called = getattr(function, "func", function)
    raise UnsupportedEnvironment(
        f"{getattr(called, '__name__', called)} must make a gymnasium.Env; it made {env!r}. A class of an environment "
        "inherits from gymnasium.Env, and one of the old package gym is converted by `shimmy`"
    )


def _copy(env: gymnasium.Env) -> gymnasium.Env | None:
    """A copy, or None where there can be none."""
    try:
        return copy.deepcopy(env)
    except Exception:  # whatever an environment holds: windows, sockets, simulators
        spec = env.spec
        try:
            return None if spec is None else gymnasium.make(spec, render_mode=env.render_mode)
        except Exception:
            return None


def _name(env: Any) -> str:
    spec = env.unwrapped.spec
    if spec is None and isinstance(env, SyncVectorEnv | AsyncVectorEnv):
        one = env.env_fns[0]()
        one.close()
        return _name(one)
    return type(env.unwrapped).__name__ if spec is None else spec.id
