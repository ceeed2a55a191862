"""Whether a run fits into memory, asked before it begins."""

from pathlib import Path


class MemoryShortageError(Exception):
    """A run would need more memory than there is."""


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
            f"{what} needs {needed / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are free; {advice}"
        )
