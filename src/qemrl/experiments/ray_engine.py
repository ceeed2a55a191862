"""Runs as tasks of a Ray cluster; needs the extra `ray`.

A task is the same process that the local engine starts, on any node that sees the folder of the sweep. If its node
dies, Ray hands the task to another one, which resumes it from the run's last checkpoint. If the driver dies, Ray ends
its tasks; the same sweep, driven again, hands over what is missing.
"""

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from qemrl.experiments.engines import EndedRun, Needs
from qemrl.experiments.worker import cause_of_failure, thread_variables, work
from qemrl.extras import how_to_install
from qemrl.training.machine import available_cores

LOOPBACK = "127.0.0.1"


class RayEngine:
    """Runs on a cluster that is there, or on one that is started here and ends with this."""

    def __init__(self, address: str | None = None, cores: int | None = None, retries: int = 10) -> None:
        """Connect to the cluster at the address, or start one here.

        Args:
            address: HOST:PORT, or `auto` for the cluster of this machine; None starts one that listens on the loopback
                interface only.
            cores: How many cores a cluster that is started here has.
            retries: How often a run is tried again whose node died.

        Raises:
            ValueError: Ray is not installed, or there is no cluster at the address.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
        if address is None or address.startswith((LOOPBACK, "localhost")):
            # Otherwise Ray would take the address that other machines see, even if asked for the loopback interface.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if address not in (None, "auto"):
            _require_cluster(address)
        try:
            import ray
        except ImportError as error:
            raise ValueError(f"the engine `ray` needs Ray; {how_to_install('ray')}") from error
        self.ray, self.retries = ray, retries
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
        if address is None:
            options |= {
                "address": "local",  # a new one, whatever Ray finds on this machine, alive or dead
                "num_cpus": cores or available_cores(),
                "include_dashboard": False,
                "_node_ip_address": LOOPBACK,
            }
        else:
            options["address"] = address
        # Ray lets its processes import from the working folder of the driver before all else: from one without modules.
        with contextlib.chdir("/"):
            try:
                ray.init(**options)
            except ConnectionError as error:
                raise _missing_cluster(str(address)) from error
        # A new process for each run: the variables that JAX reads when it is imported must be the run's own.
        self.task = ray.remote(max_calls=1)(_work)
        self.going: dict[Any, Path] = {}

    @property
    def cores(self) -> int:
        """The cores of all nodes that are there now."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    def has_room(self, needs: Needs) -> bool:
        """Always: Ray queues what it has no room for, and starts it when nodes join."""
        del needs
        return True

    def start(self, path: Path, needs: Needs) -> None:
        """Hand a run to the cluster."""
        options = {
            "num_cpus": needs.cpus,
            "num_gpus": needs.gpus,
            "memory": needs.memory_bytes,
            "max_retries": self.retries,
            "name": path.name,
        }
        variables, here = thread_variables(needs.cpus), str(Path.cwd())
        reference = self.task.options(**options).remote(str(path.resolve()), variables, here, needs.module)
        self.going[reference] = path

    def poll(self) -> list[EndedRun]:
        """The runs whose tasks have ended."""
        if not self.going:
            return []
        ready, _ = self.ray.wait(list(self.going), num_returns=len(self.going), timeout=0.1)
        over = [(self.going.pop(reference), reference) for reference in ready]
        return [EndedRun(path, self._explain(path, reference)) for path, reference in over]

    def interrupt(self, path: Path) -> None:
        """Interrupt the task of a run, which then saves its state; one that is queued is taken out."""
        for reference in [reference for reference, other in self.going.items() if other == path]:
            self.ray.cancel(reference, force=False)

    def stop(self) -> None:
        """Interrupt all tasks, which then save their state, and wait for them."""
        for reference in self.going:
            self.ray.cancel(reference, force=False)
        self.ray.wait(list(self.going), num_returns=len(self.going))

    def close(self) -> None:
        """Leave the cluster, which ends what is left; one that was started here ends too."""
        self.ray.shutdown()

    def _explain(self, path: Path, reference: Any) -> str | None:
        from ray.exceptions import RayError, TaskCancelledError

        try:
            self.ray.get(reference)
        except TaskCancelledError:
            return None
        except RayError as error:
            return cause_of_failure(path) or str(error).strip().splitlines()[-1]
        return None


def _require_cluster(address: str) -> None:
    """Raise unless something listens there: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"the address of a Ray cluster is HOST:PORT or `auto`, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise _missing_cluster(address) from error


def _missing_cluster(address: str) -> ValueError:
    return ValueError(
        f"there is no Ray cluster at {address}: start one with `ray start --head`, or leave out --address"
    )


def _work(path: str, variables: dict[str, str], folder: str, module: str) -> None:
    """Do a run in a process of a node, in the driver's working folder; one that was asked to stop is no failure."""
    os.environ.update(variables)
    with contextlib.suppress(FileNotFoundError):  # only modules for environments have to be there
        os.chdir(folder)
    from qemrl.training.train import Stopped

    with contextlib.suppress(Stopped):
        work(Path(path), module)
