# pyright: reportMissingImports=false
"""Breakout of the `minatar` package for Gymnasium, with a time limit; importing this module registers it."""

import gymnasium
from minatar.gym import register_envs

register_envs()
_ENTRY_POINT = gymnasium.spec("MinAtar/Breakout-v1")
gymnasium.register(
    "MinAtarPackage/Breakout-v1",
    entry_point=_ENTRY_POINT.entry_point,
    kwargs=_ENTRY_POINT.kwargs,
    max_episode_steps=10_000,
)
