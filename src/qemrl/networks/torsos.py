"""Torsos: from an observation to features, chosen by the observation's shape."""

import math
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qemrl.networks.layers import Convolution, Dense, Key, LayerNorm
from qemrl.types import EnvSpec

TorsoName = Literal["auto", "nature", "minatar", "mlp"]


class NatureConvolutions(eqx.Module):
    """The three convolutions of DQN (Mnih et al., 2015), on frames stacked along the first axis."""

    layers: tuple[Convolution, Convolution, Convolution]
    norms: tuple[LayerNorm | None, ...]

    def __init__(self, frames: int, layer_norm: bool, key: Key) -> None:
        keys = jax.random.split(key, 3)
        self.layers = (
            Convolution(frames, 32, 8, 4, 0, keys[0], product=False),
            Convolution(32, 64, 4, 2, 0, keys[1], product=False),
            Convolution(64, 64, 3, 1, 0, keys[2], product=False),
        )
        self.norms = tuple(LayerNorm(channels) if layer_norm else None for channels in (32, 64, 64))

    def __call__(self, observation: Array) -> Float[Array, "batch features"]:
        """The features of observations [batch, frames, rows, columns] of bytes."""
        images = jnp.moveaxis(observation, 1, -1).astype(jnp.float32) / jnp.float32(255)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            images = layer(images)
            images = jax.nn.relu(images if norm is None else norm(images))
        return images.reshape(images.shape[0], -1)


class MinAtarConvolution(eqx.Module):
    """One 3x3 convolution with 16 channels, for small boards with the channels last (Young and Tian, 2019)."""

    layer: Convolution
    norm: LayerNorm | None

    def __init__(self, channels: int, layer_norm: bool, key: Key) -> None:
        self.layer = Convolution(channels, 16, 3, 1, 1, key)
        self.norm = LayerNorm(16) if layer_norm else None

    def __call__(self, observation: Array) -> Float[Array, "batch features"]:
        """The features of observations [batch, rows, columns, channels]."""
        images = self.layer(observation.astype(jnp.float32))
        images = jax.nn.relu(images if self.norm is None else self.norm(images))
        return images.reshape(images.shape[0], -1)


class Flatten(eqx.Module):
    """The observation as a vector, brought to [−1, 1] where its bounds are known."""

    low: tuple[float, ...] | None = eqx.field(static=True)
    high: tuple[float, ...] | None = eqx.field(static=True)

    def __call__(self, observation: Array) -> Float[Array, "batch features"]:
        """The features of observations [batch, ...]."""
        features = observation.reshape(observation.shape[0], -1).astype(jnp.float32)
        if self.low is not None and self.high is not None:
            low, high = (jnp.asarray(ends, jnp.float32)[None, :] for ends in (self.low, self.high))
            features = 2 * (features - low) / (high - low) - 1
        return features


class Torso(eqx.Module):
    """What reads the observation, and dense layers behind it."""

    reader: NatureConvolutions | MinAtarConvolution | Flatten
    dense: Dense

    def __call__(self, observation: Array) -> Float[Array, "batch features"]:
        """The features of observations [batch, ...]."""
        return self.dense(self.reader(observation))


def make_torso(
    name: TorsoName, spec: EnvSpec, key: Key, widths: tuple[int, ...] = (), layer_norm: bool = False
) -> Torso:
    """The torso of that name; `auto` goes by the shape of the observation.

    Stacked frames of at least 36x36 pixels get the Nature torso, other observations with three axes the MinAtar
    torso, everything else dense layers alone. With `layer_norm`, every ReLU has a LayerNorm before it.
    """
    shape = spec.observation_shape
    if name == "auto":
        if len(shape) == 3:
            name = "nature" if spec.stacked_frames > 1 and min(shape[1:]) >= 36 else "minatar"
        else:
            name = "mlp"
    if name == "mlp":
        flatten = Flatten(spec.observation_low, spec.observation_high)
        return Torso(flatten, Dense(math.prod(shape), widths, layer_norm, key))
    if len(shape) != 3:
        raise ValueError(f"the {name} torso needs observations with three axes, {spec.id} has {shape}; use mlp")
    if name == "nature" and min(shape[1:]) < 36:
        raise ValueError(f"the nature torso needs frames of at least 36x36, {spec.id} has {shape}; use minatar or mlp")
    reader = (
        MinAtarConvolution(shape[-1], layer_norm, key)
        if name == "minatar"
        else NatureConvolutions(shape[0], layer_norm, key)
    )
    return Torso(reader, Dense(num_features(reader, spec), widths, layer_norm, jax.random.fold_in(key, 1)))


def num_features(torso: Callable[[Array], Array], spec: EnvSpec) -> int:
    """How many features the torso gives."""
    observation = jax.ShapeDtypeStruct((1, *spec.observation_shape), jnp.dtype(spec.observation_dtype))
    return jax.eval_shape(torso, observation).shape[-1]
