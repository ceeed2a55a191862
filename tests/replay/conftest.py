"""Streams of steps whose observations can be told apart."""

from collections.abc import Callable

import numpy as np
import pytest

from qemrl.types import EnvSpec, Step


def make_steps(spec: EnvSpec, num_envs: int, count: int, seed: int = 0, end: float = 0.2) -> list[Step]:
    """Steps of episodes of random lengths; a half of the ends are terminations, stacked frames are padded at resets."""
    generator = np.random.default_rng(seed)
    k = spec.stacked_frames

    def first() -> np.ndarray:
        if k == 1:
            return new(spec.observation_shape)
        return np.repeat(new((1, *spec.observation_shape[1:])), k, axis=0)

    def following(observation: np.ndarray) -> np.ndarray:
        if k == 1:
            return new(spec.observation_shape)
        return np.concatenate([observation[1:], new((1, *spec.observation_shape[1:]))])

    def new(shape: tuple[int, ...]) -> np.ndarray:
        values = generator.random(shape) if spec.observation_dtype == "float32" else generator.integers(0, 256, shape)
        return (values > 127 if spec.observation_dtype == "bool" else values).astype(spec.observation_dtype)

    steps, now = [], [first() for _ in range(num_envs)]
    for _ in range(count):
        then = [following(observation) for observation in now]
        ends = generator.random(num_envs) < end
        terminates = generator.random(num_envs) < 0.5
        mask = generator.random((num_envs, spec.num_actions)) < 0.5
        steps.append(
            Step(
                np.stack(now),
                generator.integers(0, spec.num_actions, num_envs),
                generator.normal(size=num_envs).astype(np.float32),
                ends & terminates,
                ends & ~terminates,
                np.stack(then),
                mask if spec.has_mask else None,
            )
        )
        now = [first() if ended else observation for ended, observation in zip(ends, then, strict=True)]
    return steps


@pytest.fixture(name="make_steps", scope="session")
def make_steps_fixture() -> Callable[..., list[Step]]:
    return make_steps
