"""Strictness for all tests: no silent broadcasting, no silent widening, and properties that repeat."""

import os
import shutil
import signal
import tempfile
from typing import Any

import hypothesis
import jax
import pytest
from xdist.scheduler import LoadScopeScheduling

# Tests compile for longer than they compute. These take less than half of the compiler's time: little optimization, the
# older of two generators of code, one module instead of many. Code that is not optimized at all would run too slowly.
FAST = (
    "--xla_backend_optimization_level=1",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)

# Programs that several tests, workers or child processes need are compiled once in a session. Workers and children
# inherit the folder; only the process that made it removes it.
PROGRAMS = None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    PROGRAMS = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="qemrl-programs-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"
# XLA reads its flags from the environment when the first program is compiled, here and in child processes. A test that
# is about programs as users get them starts a process without these flags, or compiles with other options.
os.environ.setdefault("XLA_FLAGS", " ".join(FAST))
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
# Shells start what runs in the background with Ctrl-C ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
hypothesis.settings.load_profile("repeatable")


TOGETHER = ("tests/experiments/test_sweep.py", "tests/report/")
"""Whose tests share what takes long to make: a sweep, a browser."""


class PresetsTogether(LoadScopeScheduling):
    """Keeps the contract tests of a preset on one worker: its loops take long to compile. So with `TOGETHER`.

    All others go anywhere.

    A scheduler, because the marks of xdist 3.8 (`xdist_group`) have no effect with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        for place in TOGETHER:
            if nodeid.startswith(place):
                return place
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
