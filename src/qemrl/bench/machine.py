"""Where figures come from."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np


def describe_machine(packages: Sequence[Sequence[str]] = ()) -> dict[str, str]:
    """The processor and the versions of what computes here, and what a peer's environment holds, if there is one."""
    device = jax.devices()[0]
    machine = {"cpu": _processor(), "cores": str(os.cpu_count()), "machine": platform.machine()}
    machine |= {"device": f"{device.platform}: {device.device_kind}"}
    machine |= {"jax": jax.__version__, "numpy": np.__version__, "python": platform.python_version()}
    return machine | ({"peer": " ".join(package for group in packages for package in group)} if packages else {})


def _processor() -> str:
    """The processor's name; Python knows it on some systems, and Linux writes it down."""
    written = Path("/proc/cpuinfo")
    lines = written.read_text(encoding="utf-8").splitlines() if written.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")
