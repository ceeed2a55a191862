"""Layers that work on any number of leading axes.

A layer takes the key of the noise that it may add; None means no noise. All weights and biases start uniform in
±1/√(fan-in), as DQN Zoo's do; `redraw_fan_average` starts them as Dopamine does.
"""

import math
from typing import Any, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Key = PRNGKeyArray
Network = TypeVar("Network")


@runtime_checkable
class Layer(Protocol):
    """An affine map of the last axis."""

    def __call__(self, inputs: Float[Array, "*batch inputs"], key: Key | None) -> Float[Array, "*batch outputs"]:
        """The outputs, with noise where a key is given and the layer has any."""
        ...


def check_widths(name: str, widths: tuple[int, ...]) -> None:
    """Raise unless every dense layer has an output."""
    if any(width < 1 for width in widths):
        raise ValueError(f"{name} must be at least 1 each, got {' '.join(map(str, widths))}")


def _uniform(key: Key, shape: tuple[int, ...], fan_in: int) -> Float[Array, "..."]:
    if min(shape) < 1 or fan_in < 1:
        raise ValueError(f"a layer needs inputs and outputs, got the shape {shape}; its widths must be at least 1")
    bound = 1 / math.sqrt(fan_in)
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def _affine(
    inputs: Float[Array, "*batch inputs"], weight: Float[Array, "outputs inputs"], bias: Float[Array, " outputs"]
) -> Float[Array, "*batch outputs"]:
    # Outputs come first in the weights: so XLA writes their gradient, and the optimizer reads it, in order.
    outputs = jax.lax.dot_general(inputs, weight, (((inputs.ndim - 1,), (1,)), ((), ())))
    return outputs + jnp.broadcast_to(bias, outputs.shape)


class Linear(eqx.Module):
    """An affine map without noise."""

    weight: Float[Array, "outputs inputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, key: Key, scale: float = 1.0) -> None:
        weight_key, bias_key = jax.random.split(key)
        self.weight = scale * _uniform(weight_key, (outputs, inputs), inputs)
        self.bias = scale * _uniform(bias_key, (outputs,), inputs)

    def __call__(self, inputs: Float[Array, "*batch inputs"], key: Key | None) -> Float[Array, "*batch outputs"]:
        """The outputs; the key is not needed."""
        del key
        return _affine(inputs, self.weight, self.bias)


class LayerNorm(eqx.Module):
    """The last axis brought to mean 0 and variance 1, then a learned affine map of each component (Ba et al., 2016)."""

    scale: Float[Array, " features"]
    bias: Float[Array, " features"]

    def __init__(self, features: int) -> None:
        self.scale, self.bias = jnp.ones(features, jnp.float32), jnp.zeros(features, jnp.float32)

    def __call__(self, inputs: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        """The outputs; where all inputs are equal they are the bias."""
        centered = inputs - jnp.mean(inputs, axis=-1, keepdims=True)
        spread = jax.lax.rsqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + jnp.float32(1e-5))
        scale, bias = (jnp.broadcast_to(each, inputs.shape) for each in (self.scale, self.bias))
        return centered * spread * scale + bias


class Dense(eqx.Module):
    """Dense layers with ReLU after each, and a LayerNorm before it if asked for."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm | None, ...]

    def __init__(self, inputs: int, widths: tuple[int, ...], layer_norm: bool, key: Key) -> None:
        sizes = (inputs, *widths)
        keys = jax.random.split(key, max(len(widths), 1))
        self.layers = tuple(Linear(sizes[i], sizes[i + 1], keys[i]) for i in range(len(widths)))
        self.norms = tuple(LayerNorm(width) if layer_norm else None for width in widths)

    def __call__(self, features: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """The outputs of the last ReLU; the features themselves if there are no layers."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            features = layer(features, None)
            features = jax.nn.relu(features if norm is None else norm(features))
        return features


class NoisyLinear(eqx.Module):
    """An affine map with learned, factorized Gaussian noise on its weights (Fortunato et al., 2018).

    One draw serves the whole batch. The scales start at 0.5 / √(fan-in), as in the paper.
    """

    mean: Linear
    weight_scale: Float[Array, "outputs inputs"]
    bias_scale: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, key: Key) -> None:
        self.mean = Linear(inputs, outputs, key)
        self.weight_scale = jnp.full((outputs, inputs), 0.5 / math.sqrt(inputs), jnp.float32)
        self.bias_scale = jnp.full((outputs,), 0.5 / math.sqrt(inputs), jnp.float32)

    def __call__(self, inputs: Float[Array, "*batch inputs"], key: Key | None) -> Float[Array, "*batch outputs"]:
        """The outputs under one draw of noise, or without noise."""
        if key is None:
            return self.mean(inputs, None)
        input_key, output_key = jax.random.split(key)
        columns = _signed_root(jax.random.normal(input_key, self.weight_scale.shape[1:], jnp.float32))
        rows = _signed_root(jax.random.normal(output_key, self.bias_scale.shape, jnp.float32))
        weight = self.mean.weight + self.weight_scale * rows[:, None] * columns[None, :]
        return _affine(inputs, weight, self.mean.bias + self.bias_scale * rows)


def _signed_root(noise: Float[Array, " n"]) -> Float[Array, " n"]:
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))


class Convolution(eqx.Module):
    """A convolution over the two axes before the last: XLA's own, or with `product` a matrix product on patches.

    As a product it stays fast under `vmap` over the weights of several seeds, where XLA would make a grouped
    convolution of it, and on small boards it is the faster of the two. From large frames it would write many more
    patches than there are pixels, and XLA's own takes half the time. The weights are the same either way.
    """

    linear: Linear
    size: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)
    padding: int = eqx.field(static=True)
    product: bool = eqx.field(static=True)

    def __init__(
        self, channels: int, outputs: int, size: int, stride: int, padding: int, key: Key, product: bool = True
    ) -> None:
        if size % stride:
            raise ValueError(f"the size of a convolution must be a multiple of its stride, got {size} and {stride}")
        self.linear = Linear(size * size * channels, outputs, key)
        self.size, self.stride, self.padding, self.product = size, stride, padding, product

    def __call__(self, images: Float[Array, "batch rows columns channels"]) -> Float[Array, "batch r c outputs"]:
        """The feature maps."""
        edge = (self.padding, self.padding)
        if self.product:
            images = jnp.pad(images, ((0, 0), edge, edge, (0, 0))) if self.padding else images
            return self.linear(patches(images, self.size, self.stride), None)
        maps = jax.lax.conv_general_dilated(
            images,
            self._kernel(images.shape[-1]),
            (self.stride, self.stride),
            (edge, edge),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return maps + jnp.broadcast_to(self.linear.bias, maps.shape)

    def _kernel(self, channels: int) -> Float[Array, "size size channels outputs"]:
        """The weights, whose inputs are in the order of `patches`, as XLA wants them."""
        reach, stride = self.size // self.stride, self.stride
        blocks = self.linear.weight.reshape(-1, reach, reach, stride, stride, channels)
        return blocks.transpose(1, 3, 2, 4, 5, 0).reshape(self.size, self.size, channels, -1)


def redraw_fan_average(network: Network, key: Key) -> Network:
    """The network with weights uniform in ±√(6 / (fan-in + fan-out)) and biases zero (Glorot and Bengio, 2010)."""
    layers, structure = jax.tree.flatten(network, is_leaf=lambda node: isinstance(node, Linear | Convolution))
    keys = jax.random.split(key, len(layers))
    return structure.unflatten([_redraw(*each) for each in zip(layers, keys, strict=True)])


def _redraw(layer: Any, key: Key) -> Any:
    if not isinstance(layer, Linear | Convolution):
        return layer
    linear, area = (layer, 1) if isinstance(layer, Linear) else (layer.linear, layer.size**2)
    outputs, fan_in = linear.weight.shape
    bound = math.sqrt(6 / (fan_in + outputs * area))
    drawn = jax.random.uniform(key, linear.weight.shape, jnp.float32, -bound, bound)
    linear = eqx.tree_at(lambda each: (each.weight, each.bias), linear, (drawn, jnp.zeros_like(linear.bias)))
    return linear if isinstance(layer, Linear) else eqx.tree_at(lambda each: each.linear, layer, linear)


def patches(
    images: Float[Array, "batch rows columns channels"], size: int, stride: int
) -> Float[Array, "batch r c features"]:
    """All patches of `size`² pixels, `stride` apart; pixels that no patch covers are left out.

    Blocks of stride² pixels are moved into the channels first, so that a patch is a few neighboring blocks.
    """
    batch, rows, columns, channels = images.shape
    down, across = (rows - size) // stride + 1, (columns - size) // stride + 1
    reach = size // stride
    tall, wide = down + reach - 1, across + reach - 1
    blocks = images[:, : tall * stride, : wide * stride]
    if stride > 1:
        blocks = blocks.reshape(batch, tall, stride, wide, stride, channels).swapaxes(2, 3)
        blocks = blocks.reshape(batch, tall, wide, stride * stride * channels)
    shifts = [blocks[:, i : i + down, j : j + across] for i in range(reach) for j in range(reach)]
    return jnp.concatenate(shifts, axis=-1)
