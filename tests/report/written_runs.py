"""Runs that are written by hand, for pages and figures."""

from collections.abc import Sequence
from pathlib import Path

from qemrl.config.serialize import to_json
from qemrl.training.config import configure
from qemrl.training.run_directory import RunDirectory

EVERY = 1_000
HOSTILE = "</script><img src=x onerror=alert(1)><!--\u2028&amp;\"'"


def write_run(
    path: Path, arm: str, env: str, seed: int, returns: Sequence[float], length: int = 4, preset: str | None = None
) -> RunDirectory:
    """A run with an evaluation each 1000 steps; finished if it has as many as its length."""
    config = configure(preset or arm.partition("+")[0], env, length * EVERY, seed=seed)
    directory = RunDirectory.create(path, to_json(config), {"arm": arm})
    for place, value in enumerate(returns, start=1):
        directory.append({"step": place * EVERY, "seed": seed, "eval/mean_reward": float(value)})
        directory.append_timing({"step": place * EVERY, "time/fps": 500.0 + 100 * seed})
    if len(returns) == length:
        directory.finish({"step": length * EVERY})
    return directory
