"""The cost of QEM against that of the plain mean, and against a forward pass of a small network.

Two ways of timing. A function is compiled and "called"; or, since agents estimate Q inside a compiled step, it is
"chained" over different batches in one program, and its time is what one batch adds, without the time to start.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.timing import Timing, time_in_turns
from qemrl.estimators import QEM, EmpiricalMean, Estimator, TailVariance, midpoints

FIXED_LIMIT = 1.05
"""QEM on fixed levels may take this many times as long as the plain mean."""

SAMPLED_LIMIT = 0.15
"""QEM on sampled levels should take at most this share of a forward pass, whichever way it is timed."""

TORCH_LIMIT = 1.5
"""The module of QEM on fixed levels may take this many times as long as `values.mean(-1)`."""

TORCH_MICROSECONDS = {"random levels": 250.0, "random levels, compiled": 80.0, "any library": 15.0}
"""What calls on PyTorch tensors may take: the module, the same compiled, and `qemrl.QEM.mean` on fixed levels."""

TORCH_SHAPE = (32, 4, 51)

BATCHES = 16
"""How many batches a chain goes through."""

NETWORK = (23, 256, 256, 32)
"""Inputs, two hidden layers and outputs of the network: a HalfCheetah critic with 32 quantiles."""


@dataclass(frozen=True)
class Comparison:
    """One line of the bench."""

    levels: str
    shape: tuple[int, ...]
    timed: str
    what: str
    microseconds: float
    peer: str
    peer_microseconds: float
    ratio: float
    limit: float | None
    most_microseconds: float | None = None
    """A limit of the time itself, where that is what is wanted."""

    @property
    def holds(self) -> bool | None:
        """Whether the ratio, or the time, keeps to its limit; None if there is none."""
        if self.most_microseconds is not None:
            return self.microseconds <= self.most_microseconds
        return None if self.limit is None else self.ratio <= self.limit

    @property
    def most(self) -> str:
        """The limit in words."""
        if self.most_microseconds is not None:
            return f"{self.most_microseconds:g} µs"
        return "" if self.limit is None else f"{self.limit:g}"


@dataclass(frozen=True)
class Report:
    """All lines, and where they come from."""

    comparisons: list[Comparison]
    machine: dict[str, str]

    def as_json(self) -> dict:
        """The report as plain data."""
        return asdict(self)


def run(rounds: int, pytorch: bool = True) -> Report:
    """Time everything, on PyTorch tensors only if that is asked for."""
    comparisons = [
        *_fixed((32, 18, 200), TailVariance(1.5), rounds),
        *_fixed((256, 32), TailVariance(1.2), rounds),
    ]
    comparisons += _sampled((256, 32), rounds)
    if pytorch:
        comparisons += time_torch(rounds)
    return Report(comparisons, describe_machine())


def time_torch(rounds: int, compiled: bool = True) -> list[Comparison]:
    """Time QEM on PyTorch tensors against their mean, with one thread."""
    import torch

    import qemrl.torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        values, levels = torch.randn(TORCH_SHAPE), torch.rand(TORCH_SHAPE[0], 1, TORCH_SHAPE[-1])
        count = TORCH_SHAPE[-1]
        fixed, implicit, neutral = qemrl.torch.QEM(count), qemrl.torch.ImplicitQEM(), QEM()
        middles = midpoints(count)
        functions = {
            "mean": lambda: values.mean(-1),
            "fixed levels": lambda: fixed(values),
            "any library": lambda: neutral.mean(values, middles),
            "random levels": lambda: implicit(values, levels),
        }
        if compiled:
            program = torch.compile(qemrl.torch.ImplicitQEM(), fullgraph=True)
            functions["random levels, compiled"] = lambda: program(values, levels)
        with torch.no_grad():
            timings = time_in_turns(functions, wait=lambda _: None, rounds=rounds)
    finally:
        torch.set_num_threads(threads)
    return [
        Comparison(
            "sampled" if "random" in name else "fixed",
            TORCH_SHAPE,
            "PyTorch",
            f"QEM, {name}",
            1e6 * timings[name].seconds,
            "mean",
            1e6 * timings["mean"].seconds,
            timings[name].ratio_to(timings["mean"]),
            TORCH_LIMIT if name == "fixed levels" else None,
            TORCH_MICROSECONDS.get(name),
        )
        for name in list(functions)[1:]
    ]


def _fixed(shape: tuple[int, ...], variance: TailVariance, rounds: int) -> list[Comparison]:
    batches = list(jax.random.normal(jax.random.key(0), (BATCHES, math.prod(shape[:-1]), shape[-1])))
    levels = midpoints(shape[-1])
    single = batches[0].reshape(shape)
    called, chained = {}, {}
    for name, estimator in {"mean": EmpiricalMean(), "QEM": QEM(variance=variance)}.items():
        compiled = jax.jit(lambda values, estimator=estimator: estimator.mean(values, levels))
        called[name] = lambda compiled=compiled: compiled(single)
        chained[name] = _chained(compiled, batches)
    return [
        _compare(("fixed", shape, "called"), "QEM", "mean", _time(called, rounds), FIXED_LIMIT),
        _compare(("fixed", shape, "chained"), "QEM", "mean", _time(chained, rounds, BATCHES), None),
    ]


def _sampled(shape: tuple[int, int], rounds: int) -> list[Comparison]:
    keys = jax.random.split(jax.random.key(1), 3)
    values = list(jax.random.normal(keys[0], (BATCHES, *shape)))
    levels = list(jax.random.uniform(keys[1], (BATCHES, *shape)))
    inputs = list(jax.random.normal(keys[2], (BATCHES, shape[0], NETWORK[0])))
    parameters = _parameters()
    estimators: dict[str, Estimator] = {
        "mean": EmpiricalMean(),
        "QEM": QEM(),
        "order 2": QEM(order=2),
        "tail V": QEM(variance=TailVariance(1.2)),
        "Legendre": QEM(basis="legendre"),
    }
    functions = {name: _chained(estimator.mean, values, levels) for name, estimator in estimators.items()}
    functions["network"] = _chained(lambda batch: _forward(parameters, batch), inputs)
    timings = _time(functions, rounds, BATCHES)
    case = ("sampled", shape, "chained")
    qem, network = jax.jit(QEM().mean), jax.jit(_forward)
    single = (values[0], levels[0])
    called = _time({"QEM": lambda: qem(*single), "network": lambda: network(parameters, inputs[0])}, rounds)
    return [
        _compare(("sampled", shape, "called"), "QEM", "network", called, SAMPLED_LIMIT),
        _compare(case, "QEM", "mean", timings, None),
        _compare(case, "QEM", "network", timings, SAMPLED_LIMIT),
        *(_compare(case, name, "network", timings, None) for name in list(estimators)[2:]),
    ]


def _chained(function: Callable[..., jax.Array], *batches: list[jax.Array]) -> Callable[[], jax.Array]:
    """A call of one compiled program that applies `function` to each batch, one after the other.

    Each batch waits for the result of the one before, of which it adds nothing (0 times), so that no two run at once.
    """

    def program(*batches: list[jax.Array]) -> jax.Array:
        result = jnp.zeros((batches[0][0].shape[0], 1))
        for batch in zip(*batches, strict=True):
            result = function(*(part + 0.0 * result for part in batch))
            result = result.reshape(len(result), -1)[:, :1]
        return result

    compiled = jax.jit(program)
    return lambda: compiled(*batches)


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


def _time(functions: dict[str, Callable[[], jax.Array]], rounds: int, batches_per_call: int = 1) -> dict[str, Timing]:
    """Seconds per batch."""
    timings = time_in_turns(functions, wait=jax.block_until_ready, rounds=rounds)
    return {name: Timing([seconds / batches_per_call for seconds in timing.rounds]) for name, timing in timings.items()}


def _compare(
    case: tuple[str, tuple[int, ...], str], name: str, peer: str, timings: dict[str, Timing], limit: float | None
) -> Comparison:
    mine, theirs = timings[name], timings[peer]
    return Comparison(*case, name, 1e6 * mine.seconds, peer, 1e6 * theirs.seconds, mine.ratio_to(theirs), limit)
