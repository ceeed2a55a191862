"""Domains: whose settings an environment gets."""

import re
from typing import Literal, get_args

MuJoCoTask = Literal["ant", "half-cheetah", "hopper", "walker2d", "swimmer", "humanoid"]
"""The tasks of the paper's table 3, each with its own settings."""

EnvFamily = Literal["atari", "minatar", "classic", MuJoCoTask]
"""`classic` is everything that is nothing else."""

MUJOCO_TASKS: tuple[MuJoCoTask, ...] = get_args(MuJoCoTask)


def mujoco_task(env: str) -> MuJoCoTask | None:
    """The task that an id such as HalfCheetah-v5 names, in any of its versions; None if it names none."""
    match = re.fullmatch(r"(?:.*:)?([A-Z]\w+)-v\d+", env)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", match.group(1)).lower() if match else ""
    return next((task for task in MUJOCO_TASKS if task == name), None)
