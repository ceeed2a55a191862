"""Replay: what was experienced, drawn again to learn from.

`HostReplay` (NumPy) and `DeviceReplay` (JAX, compiled) hold the same transitions, and the same bits draw the same ones.
"""

from qemrl.replay.config import ReplayConfig
from qemrl.replay.device import DeviceReplay, ReplayState
from qemrl.replay.host import HostReplay

__all__ = ["DeviceReplay", "HostReplay", "ReplayConfig", "ReplayState"]
