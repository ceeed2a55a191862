"""Strictness for all tests: no silent broadcasting, no silent widening, and properties that repeat."""

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
hypothesis.settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that share something dear on one worker: those of a file, in the contract those of a preset."""
    for item in items:
        case = getattr(item, "callspec", None)
        preset = None if case is None else case.params.get("system")
        item.add_marker(pytest.mark.xdist_group(preset or item.path.name))
