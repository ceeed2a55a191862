"""What tests of agents share."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def quick_compilation() -> Iterator[None]:
    """Programs run once here: XLA need not make them fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
