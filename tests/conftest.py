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
# older of two generators of code, one module instead of many.
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
# Shells start what runs in the background with Ctrl-C ignored, nohup ignores SIGHUP, and children inherit that.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
hypothesis.settings.load_profile("repeatable")


LONGEST = (
    "tests/experiments/test_sweep.py",
    "tests/contract/qem-dsac-iqn",
    "tests/paper/test_items.py",
    "tests/training/test_safety.py",
    "tests/benchmarks/test_bench_chaos.py",
    "tests/contract/td3",
    "tests/contract/tqc",
    "tests/contract/iqem-dqn",
    "tests/contract/c51",
    "tests/contract/test_loops_agree.py",
    "tests/contract/test_variance_state_is_kept.py",
    "tests/estimators/test_backends.py",
    "tests/agents/",
    "tests/cli/",
    "tests/export/",
    "tests/contract/",
    "tests/distributional/",
    "tests/tabular/test_learn.py",
    "tests/envs/",
)
"""Groups of tests that take long, the longest first: they start before all others, so that workers end together."""


def find_group(test: str) -> str:
    """The name of the tests that are done by one worker: they share what takes long to make.

    That is a file, where programs are compiled for one test that the next one needs, or all of `tests/report/`, which
    shares a browser. Contract tests are together by preset, whose loops take long to compile.
    """
    file = test.partition("::")[0]
    if file.startswith("tests/report/"):
        return "tests/report/"
    if not file.startswith("tests/contract/") or "[" not in test:
        return file
    # Not at the top: the types of what is imported before the tests would not be checked.
    from qemrl.agents.names import SUMMARIES

    case = test[test.rindex("[") + 1 : -1]
    preset = max((name for name in SUMMARIES if f"{case}-".startswith(f"{name}-")), key=len, default=None)
    if preset is None or file.endswith("test_loops_agree.py"):  # compiles loops of its own for each case
        return test
    return f"tests/contract/{preset}"


def find_place(test: str) -> int:
    """When the group of a test starts: the longest groups before all others."""
    group = find_group(test)
    return next((place for place, start in enumerate(LONGEST) if group.startswith(start)), len(LONGEST))


class InGroups(LoadScopeScheduling):
    """Hands groups to workers, in the order of the tests.

    A scheduler, because the marks of xdist 3.8 (`xdist_group`) have no effect with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return find_group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> InGroups:
    config.option.loadscopereorder = False  # by the number of tests, which says nothing about how long they take
    return InGroups(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # in a worker of xdist
        items.sort(key=lambda item: find_place(item.nodeid))


COMPUTING = ("tests/paper/", "tests/tabular/", "tests/estimators/", "tests/benchmarks/", "tests/cli/")
"""Tests that compute for longer than they compile; all others run programs that are not optimized at all."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    optimized = item.nodeid.startswith(COMPUTING)
    jax.config.update("jax_disable_most_optimizations", not optimized)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(not optimized))  # for child processes


def pytest_unconfigure(config: pytest.Config) -> None:
    del config
    if PROGRAMS is not None:
        shutil.rmtree(PROGRAMS, ignore_errors=True)
