"""Torsos: from an observation to features, chosen by what the observation is."""

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from qemrl.networks.layers import Convolution, Dense, Key, LayerNorm
from qemrl.types import EnvSpec, Part

TorsoName = Literal["auto", "nature", "minatar", "mlp"]

NATURE_SIZE = 36
"""The fewest rows and columns that the Nature convolutions leave something of."""


class Pixels(NamedTuple):
    """How an image is read: which axes are its channels, and between which values its pixels lie."""

    channel_axes: tuple[int, ...]
    """In the order in which they become one."""

    low: float = 0.0
    high: float = 1.0

    def __call__(self, observation: Array) -> Float[Array, "batch rows columns channels"]:
        """Images with the channels last and pixels in [0, 1], from observations [batch, ...]."""
        axes = [1 + axis for axis in self.channel_axes]
        images = jnp.moveaxis(observation, axes, range(-len(axes), 0)) if axes else observation[..., None]
        images = images.reshape(*images.shape[:3], -1).astype(jnp.float32)
        images = images - jnp.float32(self.low) if self.low else images
        return images / jnp.float32(self.high - self.low) if self.high - self.low != 1 else images


ATARI_FRAMES, MINATAR_BOARD = Pixels((0,), 0.0, 255.0), Pixels((2,))


class NatureConvolutions(eqx.Module):
    """The three convolutions of DQN (Mnih et al., 2015)."""

    layers: tuple[Convolution, Convolution, Convolution]
    norms: tuple[LayerNorm | None, ...]
    pixels: Pixels = eqx.field(static=True)

    def __init__(self, channels: int, layer_norm: bool, key: Key, pixels: Pixels = ATARI_FRAMES) -> None:
        keys = jax.random.split(key, 3)
        self.layers = (
            Convolution(channels, 32, 8, 4, 0, keys[0], product=False),
            Convolution(32, 64, 4, 2, 0, keys[1], product=False),
            Convolution(64, 64, 3, 1, 0, keys[2], product=False),
        )
        self.norms = tuple(LayerNorm(channels) if layer_norm else None for channels in (32, 64, 64))
        self.pixels = pixels

    def __call__(self, observation: Array) -> Float[Array, "batch features"]:
        """The features of images [batch, ...]; by default bytes [batch, frames, rows, columns]."""
        images = self.pixels(observation)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            images = layer(images)
            images = jax.nn.relu(images if norm is None else norm(images))
        return images.reshape(images.shape[0], -1)


class MinAtarConvolution(eqx.Module):
    """One 3x3 convolution with 16 channels, for small boards (Young and Tian, 2019)."""

    layer: Convolution
    norm: LayerNorm | None
    pixels: Pixels = eqx.field(static=True)

    def __init__(self, channels: int, layer_norm: bool, key: Key, pixels: Pixels = MINATAR_BOARD) -> None:
        self.layer = Convolution(channels, 16, 3, 1, 1, key)
        self.norm = LayerNorm(16) if layer_norm else None
        self.pixels = pixels

    def __call__(self, observation: Array) -> Float[Array, "batch features"]:
        """The features of images [batch, ...]; by default [batch, rows, columns, channels] as they are."""
        images = self.layer(self.pixels(observation))
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


class JoinedReaders(eqx.Module):
    """A reader for each part of an observation, and their features one behind the other."""

    readers: "tuple[NatureConvolutions | MinAtarConvolution | Flatten, ...]"
    parts: tuple[Part, ...] = eqx.field(static=True)

    def __call__(self, observation: Array) -> Float[Array, "batch features"]:
        """The features of observations [batch, ...] that hold these parts."""
        parts = zip(self.readers, split_parts(observation, self.parts), strict=True)
        return jnp.concatenate([reader(part) for reader, part in parts], axis=-1)


class Torso(eqx.Module):
    """What reads the observation, and dense layers behind it."""

    reader: NatureConvolutions | MinAtarConvolution | Flatten | JoinedReaders
    dense: Dense

    def __call__(self, observation: Array) -> Float[Array, "batch features"]:
        """The features of observations [batch, ...]."""
        return self.dense(self.reader(observation))


def split_parts(observation: Array, parts: tuple[Part, ...]) -> list[Array]:
    """The parts [batch, ...] of observations that are vectors of numbers, or of bytes."""
    of_bytes = observation.dtype == jnp.uint8
    ends = list(itertools.accumulate(part.num_bytes if of_bytes else part.num_components for part in parts))
    found = []
    for part, start, end in zip(parts, [0, *ends], ends, strict=False):
        piece = observation[:, start:end]
        if of_bytes and part.dtype == "float32":
            piece = _read_floats(piece)
        found.append(piece.reshape(piece.shape[0], *part.stored_shape))
    return found


def _read_floats(stored: UInt8[Array, "batch bytes"]) -> Float[Array, "batch n"]:
    """The float32 numbers whose bytes these are, the lowest first."""
    # put together by hand, because XLA takes no bytes of a batch of unknown size for numbers of four, as exports ask
    one, *others = (stored[:, place::4].astype(jnp.uint32) << (8 * place) for place in range(4))
    return jax.lax.bitcast_convert_type(functools.reduce(operator.or_, others, one), jnp.float32)


def make_torso(
    name: TorsoName, spec: EnvSpec, key: Key, widths: tuple[int, ...] = (), layer_norm: bool = False
) -> Torso:
    """The torso of that name; `auto` goes by the observation.

    Images of at least 36x36 pixels get the Nature torso, smaller ones the MinAtar torso, everything else dense layers
    alone. Each part of a Dict or a Tuple has a reader of its own, and a name is that of the images' reader; the dense
    layers read all of them. With `layer_norm`, every ReLU has a LayerNorm before it.
    """
    images = [part.image_shape for part in spec.sections if part.image_shape is not None]
    if name in ("nature", "minatar") and not images:
        has = spec.observation_shape if len(spec.sections) == 1 else [part.shape for part in spec.sections]
        raise ValueError(f"the {name} torso needs an image, with three axes, {spec.id} has {has}; use mlp")
    small = next((image for image in images if not _fits_nature(image)), None)
    if name == "nature" and small is not None:
        size = f"{small[0]}x{small[1]}"
        raise ValueError(f"the nature torso needs images of at least 36x36, {spec.id} has {size}; use minatar or mlp")
    reader = make_reader(name, spec, key, layer_norm)
    dense_key = key if isinstance(reader, Flatten) else jax.random.fold_in(key, 1)
    return Torso(reader, Dense(num_features(reader, spec), widths, layer_norm, dense_key))


def make_reader(
    name: TorsoName, spec: EnvSpec, key: Key, layer_norm: bool = False
) -> NatureConvolutions | MinAtarConvolution | Flatten | JoinedReaders:
    """What reads the observation in the torso of that name."""
    parts = spec.sections
    if len(parts) == 1:
        return _make_part_reader(name, parts[0], layer_norm, key)
    keys = jax.random.split(key, len(parts))
    readers = (_make_part_reader(name, part, layer_norm, each) for part, each in zip(parts, keys, strict=True))
    return JoinedReaders(tuple(readers), parts)


def _make_part_reader(
    name: TorsoName, part: Part, layer_norm: bool, key: Key
) -> NatureConvolutions | MinAtarConvolution | Flatten:
    image, axes = part.image_shape, part.channel_axes
    if image is None or axes is None:
        return Flatten(part.low, part.high)
    known = (0.0, 255.0) if part.dtype == "uint8" else None
    if part.low is not None and part.high is not None:
        known = min(part.low), max(part.high)
    if name == "mlp":
        return Flatten(None, None) if known is None else Flatten((known[0],), (known[1],))
    kind = NatureConvolutions if name == "nature" or (name == "auto" and _fits_nature(image)) else MinAtarConvolution
    return kind(image[-1], layer_norm, key, Pixels(axes, *(known or (0.0, 1.0))))


def _fits_nature(image: tuple[int, int, int]) -> bool:
    return min(image[:2]) >= NATURE_SIZE


def num_features(torso: Callable[[Array], Array], spec: EnvSpec) -> int:
    """How many features the torso gives."""
    observation = jax.ShapeDtypeStruct((1, *spec.observation_shape), jnp.dtype(spec.observation_dtype))
    return jax.eval_shape(torso, observation).shape[-1]
