"""Where figures come from."""

import os
import platform
from collections.abc import Sequence

import jax
import numpy as np

from qemrl.training.machine import processor_name


def describe_machine(packages: Sequence[Sequence[str]] = ()) -> dict[str, str]:
    """The processor and the versions of what computes here, and what a peer's environment holds, if there is one."""
    device = jax.devices()[0]
    machine = {"cpu": processor_name(), "cores": str(os.cpu_count()), "machine": platform.machine()}
    machine |= {"device": f"{device.platform}: {device.device_kind}"}
    machine |= {"jax": jax.__version__, "numpy": np.__version__, "python": platform.python_version()}
    return machine | ({"peer": " ".join(package for group in packages for package in group)} if packages else {})
