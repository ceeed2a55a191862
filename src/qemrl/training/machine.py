"""What computes here."""

import functools
import os
import platform
from pathlib import Path

import jax


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """The processor's name; Python knows it on some systems, and Linux writes it down."""
    written = Path("/proc/cpuinfo")
    lines = written.read_text(encoding="utf-8").splitlines() if written.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


@functools.cache
def machine_in_short() -> str:
    """The processor, the cores of it that this process may use, and the accelerator, if there is one."""
    cores = available_cores()
    host = f"{processor()}, {cores} core{'' if cores == 1 else 's'}"
    device = jax.devices()[0]
    return host if device.platform == "cpu" else f"{device.device_kind}, {host}"
