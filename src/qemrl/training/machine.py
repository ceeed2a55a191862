"""The machine of a run, its processor and memory, and which code made a result."""

import functools
import os
import platform
import subprocess
from pathlib import Path


class MemoryShortageError(Exception):
    """A run would need more memory than there is."""


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_name() -> str:
    """The processor's name; Python knows it on some systems, and Linux writes it down."""
    written = Path("/proc/cpuinfo")
    lines = written.read_text(encoding="utf-8").splitlines() if written.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


@functools.cache
def summarize_machine() -> str:
    """The processor, the cores of it that this process may use, and the accelerator, if there is one."""
    import jax  # commands that only draw do not wait for it

    cores = available_cores()
    host = f"{processor_name()}, {cores} core{'' if cores == 1 else 's'}"
    device = jax.devices()[0]
    return host if device.platform == "cpu" else f"{device.device_kind}, {host}"


def available_bytes() -> int | None:
    """The memory that this process may still take, by the system and by its control group; None where neither tells."""
    limits = []
    info = Path("/proc/meminfo")
    if info.exists():
        fields = dict(line.split(":", 1) for line in info.read_text(encoding="ascii").splitlines())
        if "MemAvailable" in fields:
            limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
    group = Path("/sys/fs/cgroup")
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        limits.append(int(limit.read_text()) - int(used.read_text()))
    return min(limits, default=None)


def require_memory(needed: int, what: str, advice: str) -> None:
    """Raise unless `needed` bytes are there, with a tenth to spare."""
    available = available_bytes()
    if available is not None and needed > 0.9 * available:
        raise MemoryShortageError(
            f"{what} needs {needed / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB is free; {advice}"
        )


def code_commit() -> str | None:
    """The commit of the code that runs, marked if files differ from it; None outside a checkout."""
    return file_commit(Path(__file__).parent.parent / "__init__.py")


def file_commit(file: Path) -> str | None:
    """The commit of a file, marked if files of its folder differ; None if Git does not have it."""

    def git(*words: str) -> str | None:
        call = ["git", "-C", str(file.parent), *words]
        try:
            result = subprocess.run(call, capture_output=True, text=True, check=False, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return result.stdout.strip() if result.returncode == 0 else None

    # A package that is installed below somebody's repository has nothing to do with that repository's commit.
    if git("ls-files", "--error-unmatch", "--", file.name) is None:
        return None
    commit = git("rev-parse", "HEAD")
    # New files count when a file that Git keeps uses them, and so differs.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
    return f"{commit} with changes" if commit and changed else commit


def shorten_commit(commit: str, digits: int) -> str:
    """The first digits of a commit, and the mark behind it if there is one."""
    return f"{commit[:digits]}{commit[40:]}"
