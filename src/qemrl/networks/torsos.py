"""Torsos: from an observation to features, chosen by the observation's shape."""

import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qemrl.networks.layers import Convolution, Key, Linear
from qemrl.types import EnvSpec

TorsoName = Literal["auto", "nature", "minatar", "mlp"]


class NatureTorso(eqx.Module):
    """The three convolutions of DQN (Mnih et al., 2015), on frames stacked along the first axis."""

    layers: tuple[Convolution, Convolution, Convolution]

    def __init__(self, frames: int, key: Key) -> None:
        keys = jax.random.split(key, 3)
        self.layers = (
            Convolution(frames, 32, 8, 4, 0, keys[0], product=False),
            Convolution(32, 64, 4, 2, 0, keys[1], product=False),
            Convolution(64, 64, 3, 1, 0, keys[2], product=False),
        )

    def __call__(self, observation: Array) -> Float[Array, "batch features"]:
        """The features of observations [batch, frames, rows, columns] of bytes."""
        images = jnp.moveaxis(observation, 1, -1).astype(jnp.float32) / jnp.float32(255)
        for layer in self.layers:
            images = jax.nn.relu(layer(images))
        return images.reshape(images.shape[0], -1)


class MinAtarTorso(eqx.Module):
    """One 3x3 convolution with 16 channels, for small boards with the channels last (Young and Tian, 2019)."""

    layer: Convolution

    def __init__(self, channels: int, key: Key) -> None:
        self.layer = Convolution(channels, 16, 3, 1, 1, key)

    def __call__(self, observation: Array) -> Float[Array, "batch features"]:
        """The features of observations [batch, rows, columns, channels]."""
        images = jax.nn.relu(self.layer(observation.astype(jnp.float32)))
        return images.reshape(images.shape[0], -1)


class MLPTorso(eqx.Module):
    """Dense layers on a flat observation, which is brought to [−1, 1] where its bounds are known."""

    layers: tuple[Linear, ...]
    low: tuple[float, ...] | None = eqx.field(static=True)
    high: tuple[float, ...] | None = eqx.field(static=True)

    def __init__(self, spec: EnvSpec, widths: tuple[int, ...], key: Key) -> None:
        sizes = (math.prod(spec.observation_shape), *widths)
        keys = jax.random.split(key, max(len(widths), 1))
        self.layers = tuple(Linear(sizes[i], sizes[i + 1], keys[i]) for i in range(len(widths)))
        self.low, self.high = spec.observation_low, spec.observation_high

    def __call__(self, observation: Array) -> Float[Array, "batch features"]:
        """The features of observations [batch, ...]."""
        features = observation.reshape(observation.shape[0], -1).astype(jnp.float32)
        if self.low is not None and self.high is not None:
            low, high = (jnp.asarray(ends, jnp.float32)[None, :] for ends in (self.low, self.high))
            features = 2 * (features - low) / (high - low) - 1
        for layer in self.layers:
            features = jax.nn.relu(layer(features, None))
        return features


Torso = NatureTorso | MinAtarTorso | MLPTorso


def make_torso(name: TorsoName, widths: tuple[int, ...], spec: EnvSpec, key: Key) -> Torso:
    """The torso of that name; `auto` goes by the shape of the observation.

    Stacked frames of at least 36x36 pixels get the Nature torso, other observations with three axes the MinAtar
    torso, everything else dense layers.
    """
    shape = spec.observation_shape
    if name == "auto":
        if len(shape) == 3:
            name = "nature" if spec.stacked_frames > 1 and min(shape[1:]) >= 36 else "minatar"
        else:
            name = "mlp"
    if name == "mlp":
        return MLPTorso(spec, widths, key)
    if len(shape) != 3:
        raise ValueError(f"the {name} torso needs observations with three axes, {spec.id} has {shape}; use mlp")
    if name == "minatar":
        return MinAtarTorso(shape[-1], key)
    if min(shape[1:]) < 36:
        raise ValueError(f"the nature torso needs frames of at least 36x36, {spec.id} has {shape}; use minatar or mlp")
    return NatureTorso(shape[0], key)


def num_features(torso: Torso, spec: EnvSpec) -> int:
    """How many features the torso gives."""
    observation = jax.ShapeDtypeStruct((1, *spec.observation_shape), jnp.dtype(spec.observation_dtype))
    return jax.eval_shape(torso, observation).shape[-1]
