"""Torsos: from an observation to features, chosen by what the observation is, by name, or made by a function."""

import functools
import itertools
import operator
import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from qemrl.networks.layers import Convolution, Dense, Key, LayerNorm
from qemrl.types import EnvSpec, Part

NetworkFunction = Callable[[EnvSpec, Key], Any]
"""Makes an Equinox module that maps observations [batch, ...] to features [batch, n]; a class of modules is one."""

BUILT_IN = ("auto", "nature", "minatar", "mlp")

_REGISTERED: dict[str, NetworkFunction] = {}


def torso_names() -> tuple[str, ...]:
    """The torsos that there are in this program, by name."""
    return (*BUILT_IN, *_REGISTERED)


TorsoName = Annotated[str, torso_names]
"""One of `torso_names`, as far as this program knows: a file may hold a name that another one has registered."""


def register_network(name: str, function: NetworkFunction) -> None:
    """Let a name stand for a network of your own, in the place of the torso: `--network.torso NAME`.

    The name is known in this program only.

    Args:
        name: Letters, digits, dots, dashes and underscores.
        function: From the environment's spec and a key to an Equinox module, which maps observations [batch, ...] to
            features [batch, n].

    Raises:
        ValueError: The name is taken, or is not one.
    """
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"a name has letters, digits, dots, dashes and underscores; got {name!r}")
    if not callable(function) or isinstance(function, eqx.Module):
        raise ValueError(f"a network is registered as a function that makes a module, got {function!r}")
    if name in BUILT_IN or _REGISTERED.get(name, function) is not function:
        raise ValueError(f"there is a network {name!r} already; choose another name for {function!r}")
    _REGISTERED[name] = function


def find_network(torso: TorsoName | NetworkFunction) -> str | NetworkFunction:
    """The name of a built-in torso, or the function that makes a network.

    Raises:
        ValueError: No network of that name is known in this program.
    """
    if not isinstance(torso, str) or torso in BUILT_IN:
        return torso
    if torso not in _REGISTERED:
        raise ValueError(
            f"there is no network {torso!r} in this program, which knows {', '.join(torso_names())}; register it "
            f"first: qemrl.register_network({torso!r}, function)"
        )
    return _REGISTERED[torso]


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


class OwnNetwork(eqx.Module):
    """A module that a `NetworkFunction` made: its arrays are learned, all else about it is fixed."""

    arrays: Any
    fixed: Any = eqx.field(static=True)

    def __init__(self, module: Any) -> None:
        arrays, self.fixed = eqx.partition(module, _is_array)
        self.arrays = jax.tree.map(jnp.asarray, arrays)

    def __call__(self, observation: Array) -> Float[Array, "batch features"]:
        """The features of observations [batch, ...]."""
        return eqx.combine(self.arrays, self.fixed)(observation).astype(jnp.float32)


class Torso(eqx.Module):
    """What reads the observation, and dense layers behind it."""

    reader: NatureConvolutions | MinAtarConvolution | Flatten | JoinedReaders | OwnNetwork
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
    torso: TorsoName | NetworkFunction, spec: EnvSpec, key: Key, widths: tuple[int, ...] = (), layer_norm: bool = False
) -> Torso:
    """The torso of that name, or with the network that a function makes in the place of what reads the observation.

    `auto` goes by the observation: images of at least 36x36 pixels get the Nature torso, smaller ones the MinAtar
    torso, everything else dense layers alone. Each part of a Dict or a Tuple has a reader of its own, and a name is
    that of the images' reader; the dense layers read all of them. With `layer_norm`, every ReLU has a LayerNorm before
    it.
    """
    name = find_network(torso)
    if not isinstance(name, str):
        network = _make_network(name, spec, key)
        return Torso(network, Dense(num_features(network, spec), widths, layer_norm, jax.random.fold_in(key, 1)))
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


def _make_network(function: NetworkFunction, spec: EnvSpec, key: Key) -> OwnNetwork:
    """The network that a function makes, once it is known to be one."""
    module = function(spec, key)
    name = getattr(function, "__name__", type(function).__name__)
    if not isinstance(module, eqx.Module) or not callable(module):
        raise ValueError(
            f"the network {name} must be an Equinox module that can be called, got {type(module).__name__}"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(module, _is_array)):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"the network {name} holds an array of {leaf.dtype} in {jax.tree_util.keystr(path)}, and only floats "
                "can be learned; compute what is fixed when the module is called, or keep it as a tuple"
            )
    observation = jax.ShapeDtypeStruct((2, *spec.observation_shape), jnp.dtype(spec.observation_dtype))
    try:
        features = jax.eval_shape(lambda: module(jnp.zeros(observation.shape, observation.dtype)))
    except Exception as error:
        error.add_note(
            f"The network {name} gets a batch of observations {observation.shape} of {observation.dtype} here; "
            "jax.vmap makes one of a module for single observations."
        )
        raise
    floats = isinstance(features, jax.ShapeDtypeStruct) and jnp.issubdtype(features.dtype, jnp.floating)
    if not floats or features.ndim != 2 or features.shape[0] != 2:
        raise ValueError(
            f"the network {name} must map observations [batch, {', '.join(map(str, spec.observation_shape))}] to "
            f"features [batch, n] of floats; two observations gave {features}"
        )
    return OwnNetwork(module)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def num_features(torso: Callable[[Array], Array], spec: EnvSpec) -> int:
    """How many features the torso gives."""
    observation = jax.ShapeDtypeStruct((1, *spec.observation_shape), jnp.dtype(spec.observation_dtype))
    return jax.eval_shape(torso, observation).shape[-1]
