"""The cost of QEM against that of the plain mean, and against a forward pass of a small network.

Fixed levels: both estimators are compiled and called. Sampled levels: agents estimate Q inside a compiled step,
so what counts is the time that an estimate adds to a program, not the time to start one; each function is compiled
into a loop over different batches, and its time is one batch's share.
"""

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qemrl.bench.timing import Timing, time_in_turns
from qemrl.estimators import QEM, EmpiricalMean, Estimator, TailVariance, midpoints

FIXED_LIMIT = 1.05
"""QEM on fixed levels may take this many times as long as the plain mean."""

SAMPLED_LIMIT = 0.15
"""QEM on sampled levels may take this share of a forward pass."""

BATCHES = 32
"""How many batches such a loop goes through."""

NETWORK = (23, 256, 256, 32)
"""Inputs, two hidden layers and outputs of the network: a HalfCheetah critic with 32 quantiles."""


@dataclass(frozen=True)
class Comparison:
    """One line of the bench."""

    levels: str
    shape: tuple[int, ...]
    what: str
    microseconds: float
    peer: str
    peer_microseconds: float
    ratio: float
    limit: float | None

    @property
    def holds(self) -> bool | None:
        """Whether the ratio keeps to its limit; None if there is none."""
        return None if self.limit is None else self.ratio <= self.limit


@dataclass(frozen=True)
class Report:
    """All lines, and where they come from."""

    comparisons: list[Comparison]
    machine: dict[str, str]

    def as_json(self) -> dict:
        """The report as plain data."""
        return asdict(self)


def run(rounds: int) -> Report:
    """Time everything."""
    comparisons = [
        *_fixed((32, 18, 200), TailVariance(1.5), rounds),
        *_fixed((256, 32), TailVariance(1.2), rounds),
    ]
    comparisons += _sampled((256, 32), rounds)
    device = jax.devices()[0]
    machine = {"jax": jax.__version__, "device": f"{device.platform}: {device.device_kind}"}
    machine |= {"python": platform.python_version(), "machine": platform.machine()}
    return Report(comparisons, machine)


def _fixed(shape: tuple[int, ...], variance: TailVariance, rounds: int) -> list[Comparison]:
    values = jax.random.normal(jax.random.key(0), shape)
    levels = midpoints(shape[-1])

    def call(estimator: Estimator) -> Callable[[], jax.Array]:
        compiled = jax.jit(lambda values: estimator.mean(values, levels))
        return lambda: compiled(values)

    functions = {"mean": call(EmpiricalMean()), "QEM": call(QEM(variance=variance))}
    return [_compare("fixed", shape, "QEM", "mean", _time(functions, rounds), FIXED_LIMIT)]


def _sampled(shape: tuple[int, int], rounds: int) -> list[Comparison]:
    keys = jax.random.split(jax.random.key(1), 3)
    values = jax.random.normal(keys[0], (BATCHES, *shape))
    levels = jax.random.uniform(keys[1], (BATCHES, *shape))
    inputs = jax.random.normal(keys[2], (BATCHES, shape[0], NETWORK[0]))
    parameters = _parameters()
    estimators: dict[str, Estimator] = {
        "mean": EmpiricalMean(),
        "QEM": QEM(),
        "QEM, order 2": QEM(order=2),
        "QEM, tail variance": QEM(variance=TailVariance(1.2)),
        "QEM, Legendre": QEM(basis="legendre"),
    }
    functions = {
        name: _looped(lambda batch, estimator=estimator: estimator.mean(*batch), (values, levels))
        for name, estimator in estimators.items()
    }
    functions["network"] = _looped(lambda batch: _forward(parameters, batch), inputs)
    timings = {
        name: Timing([seconds / BATCHES for seconds in timing.rounds])
        for name, timing in _time(functions, rounds).items()
    }
    return [
        _compare("sampled", shape, "QEM", "mean", timings, None),
        _compare("sampled", shape, "QEM", "network", timings, SAMPLED_LIMIT),
        *(_compare("sampled", shape, name, "network", timings, None) for name in list(estimators)[2:]),
    ]


def _looped(function: Callable[[Any], jax.Array], batches: Any) -> Callable[[], jax.Array]:
    """A call that applies the compiled `function` to each of the batches."""
    compiled = jax.jit(lambda batches: jax.lax.map(function, batches))
    return lambda: compiled(batches)


def _parameters() -> list[tuple[jax.Array, jax.Array]]:
    rng = np.random.default_rng(0)
    return [
        (jnp.asarray(rng.normal(0, fan_in**-0.5, (fan_in, fan_out)), jnp.float32), jnp.zeros(fan_out))
        for fan_in, fan_out in pairwise(NETWORK)
    ]


def _forward(parameters: list[tuple[jax.Array, jax.Array]], inputs: jax.Array) -> jax.Array:
    *hidden, (weight, bias) = parameters
    for matrix, offset in hidden:
        inputs = jax.nn.relu(inputs @ matrix + offset[None])
    return inputs @ weight + bias[None]


def _time(functions: dict[str, Callable[[], jax.Array]], rounds: int) -> dict[str, Timing]:
    return time_in_turns(functions, wait=jax.block_until_ready, rounds=rounds)


def _compare(
    levels: str, shape: tuple[int, ...], name: str, peer: str, timings: dict[str, Timing], limit: float | None
) -> Comparison:
    mine, theirs = timings[name], timings[peer]
    times = 1e6 * mine.seconds, peer, 1e6 * theirs.seconds, mine.ratio_to(theirs)
    return Comparison(levels, shape, name, *times, limit)
