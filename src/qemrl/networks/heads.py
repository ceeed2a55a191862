"""Heads: from features to a number of outputs for each action."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qemrl.networks.layers import Key, Layer, LayerNorm, Linear, NoisyLinear


@dataclass(frozen=True)
class StreamConfig:
    """How a head is built, whatever it is to hold."""

    hidden: tuple[int, ...]
    dueling: bool
    noisy: bool
    layer_norm: bool = False


class Stream(eqx.Module):
    """Dense layers with ReLU between them, and before each ReLU a LayerNorm if the configuration says so."""

    layers: tuple[Layer, ...]
    norms: tuple[LayerNorm | None, ...]

    def __init__(self, config: StreamConfig, features: int, outputs: int, key: Key) -> None:
        sizes = (features, *config.hidden, outputs)
        kind = NoisyLinear if config.noisy else Linear
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(kind(sizes[i], sizes[i + 1], keys[i]) for i in range(len(sizes) - 1))
        self.norms = tuple(LayerNorm(width) if config.layer_norm else None for width in config.hidden)

    def __call__(self, features: Float[Array, "*batch features"], key: Key | None) -> Float[Array, "*batch outputs"]:
        """The outputs of the last layer, without ReLU."""
        *hidden, last = self.layers
        keys = [None] * len(self.layers) if key is None else list(jax.random.split(key, len(self.layers)))
        for layer, norm, layer_key in zip(hidden, self.norms, keys, strict=False):
            features = layer(features, layer_key)
            features = jax.nn.relu(features if norm is None else norm(features))
        return last(features, keys[-1])


class ActionStreams(eqx.Module):
    """Outputs for each action; with dueling, one stream for the state and one for the actions' advantages."""

    advantage: Stream
    value: Stream | None
    num_actions: int = eqx.field(static=True)

    def __init__(self, config: StreamConfig, features: int, num_actions: int, outputs: int, key: Key) -> None:
        advantage_key, value_key = jax.random.split(key)
        self.advantage = Stream(config, features, num_actions * outputs, advantage_key)
        self.value = Stream(config, features, outputs, value_key) if config.dueling else None
        self.num_actions = num_actions

    @property
    def linear(self) -> Linear | None:
        """The one layer, without noise, that this is; None if it is more than that."""
        first, *further = self.advantage.layers
        return first if isinstance(first, Linear) and not further and self.value is None else None

    def __call__(
        self, features: Float[Array, "*batch features"], key: Key | None
    ) -> Float[Array, "*batch actions outputs"]:
        """The outputs; dueling adds to the state's those of each action, less their mean over the actions."""
        keys = (None, None) if key is None else jax.random.split(key)
        outputs = self.advantage(features, keys[0])
        outputs = outputs.reshape(*outputs.shape[:-1], self.num_actions, -1)
        if self.value is None:
            return outputs
        state = self.value(features, keys[1])[..., None, :]
        return outputs - jnp.mean(outputs, axis=-2, keepdims=True) + jnp.broadcast_to(state, outputs.shape)
