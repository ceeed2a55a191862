"""Strictness for all tests: no silent broadcasting, no silent widening, and properties that repeat."""

import os
import shutil
import tempfile
from typing import Any

import hypothesis
import jax
import pytest
from xdist.scheduler import LoadScopeScheduling

# Programs that several tests, workers or child processes need are compiled once in a session. Workers and children
# inherit the folder; only the process that made it removes it.
PROGRAMS = None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    PROGRAMS = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="qemrl-programs-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
hypothesis.settings.load_profile("repeatable")


class PresetsTogether(LoadScopeScheduling):
    """Keeps the contract tests of a preset on one worker: its loops take long to compile. All others go anywhere.

    A scheduler, because the marks of xdist 3.8 (`xdist_group`) have no effect with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        if "contract/" not in nodeid or "[" not in nodeid:
            return nodeid
        # Not at the top: the types of what is imported before the tests would not be checked.
        from qemrl.agents.names import SUMMARIES

        case = nodeid[nodeid.rindex("[") + 1 : -1]
        return max((name for name in SUMMARIES if f"{case}-".startswith(f"{name}-")), key=len, default=nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> PresetsTogether:
    return PresetsTogether(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    del config
    if PROGRAMS is not None:
        shutil.rmtree(PROGRAMS, ignore_errors=True)
