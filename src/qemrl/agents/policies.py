"""How the outputs of a policy network become continuous actions, all in [−1, 1].

A policy is a frozen record of settings. The agent asks for the action to learn from (`sample`, differentiable), to
explore with (`explore`), to bootstrap from (`follow`) and to evaluate (`mode`).
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qemrl.networks.layers import Key

Outputs = Float[Array, "batch outputs"]
Components = Float[Array, "batch components"]


class Choice(NamedTuple):
    """Actions in [−1, 1] and the logarithm of their density there; zero for policies that have no density."""

    action: Components
    log_prob: Float[Array, " batch"]


@runtime_checkable
class Policy(Protocol):
    """What the agent asks of a policy."""

    has_entropy: ClassVar[bool]
    """Whether actions have a density, whose entropy can be weighted."""

    def num_outputs(self, components: int) -> int:
        """How many outputs of the network an action with this many components takes."""
        ...

    def sample(self, outputs: Outputs, key: Key) -> Choice:
        """What the policy is improved on, differentiable with respect to the outputs."""
        ...

    def follow(self, outputs: Outputs, key: Key) -> Choice:
        """What the Bellman target bootstraps from."""
        ...

    def explore(self, outputs: Outputs, key: Key) -> Components:
        """The action to take in training."""
        ...

    def mode(self, outputs: Outputs) -> Components:
        """The action without exploration."""
        ...


@dataclass(frozen=True)
class TanhGaussian(Policy):
    """A normal distribution squashed by tanh, as in SAC."""

    log_std_min: float = -20.0
    """The lower bound of the log standard deviation."""

    log_std_max: float = 2.0
    """The upper bound of the log standard deviation."""

    has_entropy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.log_std_min < self.log_std_max:
            raise ValueError(f"log_std_min must be below log_std_max, got {self.log_std_min} and {self.log_std_max}")

    def num_outputs(self, components: int) -> int:
        """A mean and a logarithm of the standard deviation for each component."""
        return 2 * components

    def sample(self, outputs: Outputs, key: Key) -> Choice:
        """tanh(μ + σ ε), ε standard normal.

        log π(a) = Σ log N(u; μ, σ) − Σ log(1 − tanh² u) with u = μ + σ ε, and log(1 − tanh² u) in the form
        2 (log 2 − u − softplus(−2u)), which neither overflows nor cancels.
        """
        mean, log_std = self._split(outputs)
        noise = jax.random.normal(key, mean.shape, jnp.float32)
        raw = mean + jnp.exp(log_std) * noise
        density = -0.5 * jnp.square(noise) - log_std - jnp.float32(0.5 * jnp.log(2 * jnp.pi))
        return Choice(jnp.tanh(raw), jnp.sum(density - log_tanh_slope(raw), axis=-1))

    def follow(self, outputs: Outputs, key: Key) -> Choice:
        return self.sample(outputs, key)

    def explore(self, outputs: Outputs, key: Key) -> Components:
        """The action of a sample."""
        return self.sample(outputs, key).action

    def mode(self, outputs: Outputs) -> Components:
        """Tanh μ."""
        return jnp.tanh(self._split(outputs)[0])

    def _split(self, outputs: Outputs) -> tuple[Components, Components]:
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return mean, jnp.clip(log_std, self.log_std_min, self.log_std_max)


def log_tanh_slope(raw: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The logarithm of 1 − tanh²(raw), for any raw."""
    return 2 * (jnp.float32(jnp.log(2.0)) - raw - jax.nn.softplus(-2 * raw))


@dataclass(frozen=True)
class Deterministic(Policy):
    """One action, as in TD3: noise is added to explore, and clipped noise to smooth the target."""

    noise: float = 0.1
    """The standard deviation of the noise in training."""

    target_noise: float = 0.2
    """The standard deviation of the noise on the action that the target bootstraps from."""

    target_clip: float = 0.5
    """How large that noise may be."""

    has_entropy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("noise", "target_noise", "target_clip"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")

    def num_outputs(self, components: int) -> int:
        """One for each component."""
        return components

    def sample(self, outputs: Outputs, key: Key) -> Choice:
        """Tanh of the outputs."""
        del key
        return self._deterministic(jnp.tanh(outputs))

    def follow(self, outputs: Outputs, key: Key) -> Choice:
        """The action with clipped noise, within [−1, 1]."""
        noise = self.target_noise * jax.random.normal(key, outputs.shape, jnp.float32)
        noise = jnp.clip(noise, -self.target_clip, self.target_clip)
        return self._deterministic(jnp.clip(jnp.tanh(outputs) + noise, -1, 1))

    def explore(self, outputs: Outputs, key: Key) -> Components:
        """The action with noise, within [−1, 1]."""
        noise = self.noise * jax.random.normal(key, outputs.shape, jnp.float32)
        return jnp.clip(jnp.tanh(outputs) + noise, -1, 1)

    def mode(self, outputs: Outputs) -> Components:
        """Tanh of the outputs."""
        return jnp.tanh(outputs)

    def _deterministic(self, action: Components) -> Choice:
        return Choice(action, jnp.zeros(action.shape[0], jnp.float32))


@runtime_checkable
class Temperature(Protocol):
    """What the agent asks of the weight α of the policy's entropy."""

    def init(self) -> Float[Array, ""] | None:
        """The initial log α, where it is learned; else None."""
        ...

    def value_at(self, log_temperature: Float[Array, ""] | None) -> Float[Array, ""]:
        """α."""
        ...

    def gradient(self, log_prob: Float[Array, " batch"], components: int) -> Float[Array, ""]:
        """The gradient of the loss of log α; zero where it is not learned."""
        del components
        return jnp.zeros_like(log_prob, shape=())


@dataclass(frozen=True)
class FixedTemperature(Temperature):
    """A constant weight α of the policy's entropy."""

    value: float = 0.2
    """α; zero for policies that have no density."""

    def __post_init__(self) -> None:
        if not 0 <= self.value < float("inf"):
            raise ValueError(f"a temperature must be finite and not negative, got {self.value}")

    def init(self) -> None:
        """None: there is nothing to learn."""

    def value_at(self, log_temperature: Float[Array, ""] | None) -> Float[Array, ""]:
        del log_temperature
        return jnp.float32(self.value)


@dataclass(frozen=True)
class AutomaticTemperature(Temperature):
    """A weight α that is learned, so that the policy keeps a given entropy (Haarnoja et al., 2018)."""

    initial: float = 1.0
    """The initial α."""

    target_entropy: float | None = None
    """The entropy to keep, of actions in [−1, 1]; None for minus the number of components."""

    def __post_init__(self) -> None:
        if not 0 < self.initial < float("inf"):
            raise ValueError(f"a learned temperature must start positive and finite, got {self.initial}")

    def init(self) -> Float[Array, ""]:
        return jnp.log(jnp.float32(self.initial))

    def value_at(self, log_temperature: Float[Array, ""] | None) -> Float[Array, ""]:
        assert log_temperature is not None
        return jnp.exp(log_temperature)

    def gradient(self, log_prob: Float[Array, " batch"], components: int) -> Float[Array, ""]:
        """The gradient of −log α · (log π + target), which does not vanish where α is small."""
        target = -float(components) if self.target_entropy is None else self.target_entropy
        return -(jnp.mean(log_prob) + target)
