"""Trains QEM-DQN on CartPole with a network of its own, Fourier features, and a learning rate that falls.

python examples/own_network.py --steps 20000
"""

import argparse
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

import qemrl
from qemrl.types import EnvSpec


class FourierFeatures(eqx.Module):
    """Sines and cosines of learned projections of the observation (Tancik et al., 2020)."""

    projection: Float[Array, "inputs features"]
    phase: Float[Array, " features"]

    def __init__(self, spec: EnvSpec, key: PRNGKeyArray, features: int = 64) -> None:
        inputs = math.prod(spec.observation_shape)
        self.projection = jax.random.normal(key, (inputs, features))
        self.phase = jnp.zeros(features)

    def __call__(self, observation: Float[Array, "batch ..."]) -> Float[Array, "batch n"]:
        """The features of a batch of observations."""
        angles = observation.reshape(observation.shape[0], -1) @ self.projection + self.phase[None, :]
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def train(steps: int, seed: int, progress: bool = True) -> qemrl.TrainableAgent:
    """The agent after so many steps."""
    overrides = {
        "network.torso": FourierFeatures,  # or any function from spec and key to a module
        "network.widths": (128,),  # the dense layers behind it
        "optimizer.schedule": "linear",
        "optimizer.decay_steps": max(steps, 1_000),
    }
    return qemrl.make("qem-dqn", env="CartPole-v1", seed=seed, overrides=overrides).learn(steps, progress=progress)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and say what the agent gets in 20 episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    agent = train(asked.steps, asked.seed)
    print(f"mean return of 20 episodes after {agent.steps:,} steps: {agent.evaluate(20).mean:.1f}")


if __name__ == "__main__":
    main()
