"""Environments as users write them, registered with Gymnasium when this module is imported."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class GridWorld(gymnasium.Env):
    """Walk along a line to its right end; the world has keyword arguments, and actions that count from one."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, size=5, goal_reward=1.0, wind="calm", render_mode=None):
        self.size, self.goal_reward, self.wind, self.render_mode = size, goal_reward, wind, render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (size,), np.float32)
        self.action_space = spaces.Discrete(2, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.place = int(self.np_random.integers(self.size - 1))
        return self._look(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.place = max(0, self.place + (1 if action == 2 else -1))
        there = self.place == self.size - 1
        return self._look(), self.goal_reward if there else -0.01, there, False, {}

    def render(self):
        return np.kron(self._look()[None, :, None], np.full((8, 8, 3), 255)).astype(np.uint8)

    def _look(self):
        return np.eye(self.size, dtype=np.float32)[self.place]


class ImageMaze(gymnasium.Env):
    """A room seen from above, as an image in color with the channels last, where the walker is a bright square."""

    def __init__(self, pixels=36):
        self.pixels = pixels
        self.observation_space = spaces.Box(0, 255, (pixels, pixels, 3), np.uint8)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.place, self.steps = self.np_random.integers(4, size=2), 0
        return self._look(), {}

    def step(self, action):
        self.place = np.clip(self.place + np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])[action], 0, 3)
        self.steps += 1
        there = bool((self.place == 3).all())
        return self._look(), float(there), there, self.steps >= 20, {}

    def _look(self):
        picture, side = np.zeros((self.pixels, self.pixels, 3), np.uint8), self.pixels // 4
        row, column = self.place * side
        picture[row : row + side, column : column + side] = (255, 200, 100)
        return picture


class DictRobot(gymnasium.Env):
    """A robot with a camera, joints and a task, that moves by continuous actions."""

    def __init__(self):
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (8, 8, 1), np.uint8),
                "joints": spaces.Box(-np.inf, np.inf, (3,), np.float32),
                "task": spaces.Discrete(3),
            }
        )
        self.action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.joints, self.task, self.steps = np.zeros(3, np.float32), int(self.np_random.integers(3)), 0
        return self._look(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.joints[:2] += 0.1 * action
        self.steps += 1
        return self._look(), -float(np.abs(self.joints[:2] - self.task).sum()), False, self.steps >= 10, {}

    def _look(self):
        camera = np.full((8, 8, 1), 80 * self.task, np.uint8)
        return {"camera": camera, "joints": self.joints.copy(), "task": self.task}


class OneStep(gymnasium.Env):
    """An episode ends at its first step: a bandit."""

    observation_space = spaces.Discrete(3, start=7)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.state = 7 + int(self.np_random.integers(3))
        return self.state, {}

    def step(self, action):
        return self.state, float(action == self.state - 7), True, False, {}


for name, kind in {"GridWorld": GridWorld, "ImageMaze": ImageMaze, "DictRobot": DictRobot, "OneStep": OneStep}.items():
    creator: Any = kind
    gymnasium.register(f"{name}-v0", creator, max_episode_steps=40)
