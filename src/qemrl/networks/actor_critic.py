"""The networks of actor-critic agents: from an observation to a policy's outputs, and from it and an action to a Q."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qemrl.networks.layers import Dense, Key, Linear
from qemrl.networks.torsos import Torso, TorsoName, make_torso, num_features
from qemrl.types import EnvSpec


class PolicyNetwork(eqx.Module):
    """From an observation to the outputs that a policy reads; the last layer begins near zero, as in DSAC's code."""

    torso: Torso
    dense: Dense
    head: Linear

    def __init__(self, torso: TorsoName, widths: tuple[int, ...], outputs: int, spec: EnvSpec, key: Key) -> None:
        torso_key, dense_key, head_key = jax.random.split(key, 3)
        self.torso = make_torso(torso, spec, torso_key)
        features = num_features(self.torso, spec)
        self.dense = Dense(features, widths, False, dense_key)
        self.head = Linear(widths[-1] if widths else features, outputs, head_key, scale=1e-2)

    def __call__(self, observation: Array) -> Float[Array, "batch outputs"]:
        """The outputs for observations [batch, ...]."""
        return self.head(self.dense(self.torso(observation)), None)


class CriticTorso(eqx.Module):
    """From an observation and an action to features: the action joins what the torso makes of the observation."""

    torso: Torso
    dense: Dense

    def __init__(self, torso: TorsoName, widths: tuple[int, ...], layer_norm: bool, spec: EnvSpec, key: Key) -> None:
        torso_key, dense_key = jax.random.split(key)
        self.torso = make_torso(torso, spec, torso_key)
        components = 0 if spec.box is None else len(spec.box.low)
        self.dense = Dense(num_features(self.torso, spec) + components, widths, layer_norm, dense_key)

    def __call__(self, observation: Array, action: Float[Array, "batch components"]) -> Float[Array, "batch features"]:
        """The features of observations [batch, ...] and actions in [−1, 1]."""
        return self.dense(jnp.concatenate([self.torso(observation), action], axis=-1))
