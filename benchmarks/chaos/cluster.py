"""A sweep on a Ray cluster whose nodes, head and driver are killed; another driver finishes it on a new cluster."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.chaos.runs import GRID, SWEEP, compare, references
from benchmarks.chaos.trials import Outcome, Trial

PATIENCE_SECONDS = 240.0


def try_cluster(trial: Trial) -> Outcome:
    """Kill a node, the head and the driver of three clusters, in an order of chance; then finish on a fourth."""
    chance, outcome, folder = trial.chance, Outcome(), trial.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "grid.toml").write_text(GRID, encoding="utf-8")
    out, history = folder / "sweep", []
    for victim in (*chance.sample(("node", "head", "driver"), 3), "nobody"):
        kind = f"Ray, {victim} killed"
        cluster = RayCluster()
        try:
            driver = _start_driver(folder, out, cluster.address)
            before = _count_records(out)
            _wait_for_records(out, before + chance.randint(1, 12), driver)
            if victim == "driver":
                driver.kill()
            elif victim != "nobody":
                cluster.tell(f"kill {victim}")
            code = _wait(driver, PATIENCE_SECONDS)
        finally:
            cluster.close()
        history.append(f"{victim}: {code}")
        outcome.tried[kind] += victim != "nobody"
        if code is None:
            outcome.fail(kind, "hang", f"{'; '.join(history)}: the driver did not end")
        if victim in ("node", "nobody") and code != 0:
            said = (folder / "log.txt").read_text(errors="replace")
            outcome.fail(kind, "lost", f"{'; '.join(history)}: {said[-3_000:]}")
    for reference in sorted((references(trial.work) / SWEEP / "runs").iterdir()):
        for verdict, what in compare(out / "runs" / reference.name, reference):
            outcome.fail("Ray, nobody killed", verdict, f"{'; '.join(history)}: {reference.name}: {what}")
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


class RayCluster:
    """A cluster of two nodes beside its head, in processes of their own."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "benchmarks.chaos.ray_cluster"]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.tell("add")
        self.address = self.tell("add")

    def tell(self, what: str) -> str:
        """The address of the cluster, after it did what it was told."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        while not (said := self.process.stdout.readline()).startswith("127.0.0.1"):
            if not said:
                raise RuntimeError("the cluster has ended")
        return said.strip()

    def close(self) -> None:
        """End it."""
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _start_driver(folder: Path, out: Path, address: str) -> subprocess.Popen[bytes]:
    words = ("sweep", str(folder / "grid.toml"), "--out", str(out), "--engine", "ray", "--address", address)
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "qemrl", *words, "--memory-per-run", "0.5"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _count_records(out: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in out.glob("runs/*/metrics.jsonl"))


def _wait_for_records(out: Path, count: int, driver: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while _count_records(out) < count and driver.poll() is None and time.monotonic() < until:
        time.sleep(0.05)


def _wait(driver: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return driver.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        return None
