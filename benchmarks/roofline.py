"""How much of the machine's arithmetic an update uses.

An update multiplies matrices. A layer with weights [outputs, inputs] that is applied at P places of an observation (one
for a dense layer, each pixel of its feature maps for a convolution) takes outputs · inputs · P multiply-adds a sample.
With F their sum over the layers and F₁ the first layer's share, an update of QR-DQN takes, a sample,

    F (target network, forward) + F (online, forward) + F (gradients of weights) + F − F₁ (gradients of inputs)

for nobody needs the gradient of an observation. Each is two operations. What else an update does (loss, optimizer,
activations) is counted as none, though it takes time: the share is of useful products, and falls where they are few.

Updates of actor-critics have no such short formula where levels join in the middle of a network. There the products are
counted in the traced program, which has each of them once.
"""

import time
from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, jaxprs_in_params

from qemrl.agents.value import Network
from qemrl.networks.heads import ActionStreams
from qemrl.networks.layers import Convolution, Linear
from qemrl.types import EnvSpec

SIZE = 2048
"""Rows and columns of the matrices that the peak is measured with."""


def matrix_multiply_peak(size: int = SIZE, calls: int = 20) -> float:
    """What products of float32 matrices reach here, in GFLOP/s: the best of the calls."""
    matrix = jax.random.normal(jax.random.key(0), (size, size), jnp.float32)
    multiply = jax.jit(jnp.matmul)
    multiply(matrix, matrix).block_until_ready()
    best = float("inf")
    for _ in range(calls):
        start = time.perf_counter()
        multiply(matrix, matrix).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9


def layer_multiply_adds(network: Network, spec: EnvSpec) -> list[int]:
    """Multiply-adds of each layer for one observation, in the order in which the layers are applied.

    Raises:
        ValueError: There are layers in the network whose products are not counted here.
    """
    if not isinstance(network.head, ActionStreams):
        raise ValueError(f"the products of {type(network.head).__name__} are not counted: its layers see many levels")
    sides = spec.observation_shape[1:] if spec.stacked_frames > 1 else spec.observation_shape[:2]
    counts = []
    for layer in jax.tree.leaves(network, is_leaf=lambda part: isinstance(part, Convolution | Linear)):
        if isinstance(layer, Convolution):
            sides = [(side + 2 * layer.padding - layer.size) // layer.stride + 1 for side in sides]
            counts.append(prod(sides) * layer.linear.weight.size)
        elif isinstance(layer, Linear):
            counts.append(layer.weight.size)
        else:
            raise ValueError(f"the products of a part of {type(network).__name__} are not counted: only plain layers")
    return counts


def update_operations(network: Network, spec: EnvSpec, batch_size: int) -> int:
    """Floating-point operations of an update of QR-DQN, as the formula above has it."""
    counts = layer_multiply_adds(network, spec)
    return 2 * batch_size * (4 * sum(counts) - counts[0])


def product_operations(function: Callable[..., Any], *arguments: Any) -> int:
    """Floating-point operations of all matrix products in a function of these arguments, of which the shapes matter.

    Raises:
        ValueError: There are convolutions, or products in a loop of unknown length.
    """
    return _product_operations(jax.make_jaxpr(function)(*arguments).jaxpr)


def _product_operations(program: Jaxpr) -> int:
    total = 0
    for equation in program.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, product = _shape(equation.invars[0]), _shape(equation.outvars[0])
            total += 2 * prod(product) * prod(left[axis] for axis in contracted)
            continue
        inner = [_product_operations(part) for part in jaxprs_in_params(equation.params)]
        if name == "conv_general_dilated" or (name == "while" and any(inner)):
            raise ValueError(f"the products of {name} are not counted: only matrix products, a known number of times")
        # Of the branches of a condition one is taken.
        once = max(inner, default=0) if name == "cond" else sum(inner)
        total += once * (equation.params["length"] if name == "scan" else 1)
    return total


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape
