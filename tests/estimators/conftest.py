"""The three array libraries, as one parameter."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch


class Library(NamedTuple):
    name: str
    make: Callable[..., Any]
    kind: type
    read: Callable[[Any], np.ndarray]


def _torch(data: Any, dtype: str = "float64") -> torch.Tensor:
    return torch.as_tensor(np.array(data), dtype=getattr(torch, dtype))


LIBRARIES = [
    Library("numpy", lambda data, dtype="float64": np.asarray(data, dtype=dtype), np.ndarray, np.asarray),
    Library("jax", lambda data, dtype="float64": jnp.asarray(data, dtype=dtype), jax.Array, np.asarray),
    Library("torch", _torch, torch.Tensor, lambda tensor: tensor.detach().numpy()),
]


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    """Each library in turn, with float64 switched on in JAX."""
    with jax.enable_x64(True):
        yield request.param
