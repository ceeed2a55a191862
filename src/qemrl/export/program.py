"""The greedy policy as a program: from observations to actions and return distributions, with the parameters inside."""

import importlib
import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jaxtyping import Array, Float, Shaped

from qemrl.agents.agent import InspectableAgent
from qemrl.agents.presets import make_agent
from qemrl.api import TrainableAgent
from qemrl.distributional.ensembles import pool_members
from qemrl.distributional.implicit import ImplicitHead, ImplicitQuantiles
from qemrl.distributional.representation import Features, Purpose
from qemrl.estimators import midpoints
from qemrl.extras import require_extra
from qemrl.networks.layers import Key
from qemrl.networks.torsos import split_parts
from qemrl.types import Part, ReturnDist

Format = Literal["stablehlo", "onnx"]
LevelSource = Literal["midpoints", "input"]
Arrays = Sequence[Shaped[np.ndarray, "..."]]
"""What a program takes or returns, in the order of its inputs or outputs."""

PLATFORMS = ("cpu", "cuda", "tpu")
"""What a StableHLO program runs on."""

TOLERANCE = 1e-5
"""How far a program may be from the agent, as a share of the largest number that the agent gives, or of one."""


class ExportError(Exception):
    """A program that could not be written, or that does not do what its agent does."""


class Tensor(NamedTuple):
    """An input or an output of a program."""

    name: str
    shape: tuple[int | str, ...]
    """The size of each axis, or its name where any size will do."""

    dtype: str


class Policy(NamedTuple):
    """What is to become a program."""

    function: Callable[..., tuple[Array, ...]]
    """From the inputs to the outputs, in their order."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    """`action`, `values`, and `levels` and `probs` where they depend on the observation."""

    levels: Float[np.ndarray, " n"] | None
    """Of the values, where they are the same for all observations and no input."""

    probs: Float[np.ndarray, " n"] | None


@dataclass(frozen=True)
class GivenLevels(ImplicitQuantiles):
    """Quantiles at levels that somebody else chooses."""

    given: Any = None
    """Levels [n], each of which stands for 1/n."""

    def predict(self, head: ImplicitHead, features: Features, purpose: Purpose, key: Key | None) -> ReturnDist:
        """The quantiles at the given levels, without noise in the weights."""
        del purpose, key
        values = head(features, self.given[None], None)
        return ReturnDist(values.swapaxes(1, 2)[:, None], self.given[None, None, None])


def make_policy(agent: TrainableAgent, levels: LevelSource = "midpoints") -> Policy:
    """The agent's greedy policy, with the parameters that it has now.

    Args:
        agent: Any agent; of a stochastic policy the mode acts.
        levels: Where the levels come from that an agent such as IQN draws in training: fixed midpoints, or an input.

    Raises:
        ValueError: Levels are to be an input, and the agent draws none.
    """
    if levels not in get_args(LevelSource):
        raise ValueError(f"levels must be one of {', '.join(get_args(LevelSource))}; got {levels!r}")
    spec, params, representation = agent.spec, agent.params, agent.config.agent.representation
    parts = _list_parts(agent)
    inputs = [Tensor("observation", ("batch", *spec.observation_shape), spec.observation_dtype)]
    if parts:
        inputs = [Tensor(_name(each), ("batch", *each.shape), "int32" if each.sizes else each.dtype) for each in parts]
    if spec.has_mask:
        inputs.append(Tensor("mask", ("batch", spec.num_actions), "bool"))
    if levels == "input":
        if not isinstance(representation, ImplicitQuantiles):
            kind = type(representation).__name__
            raise ValueError(f"{agent.config.preset} draws no levels that could be an input ({kind}); use midpoints")
        inputs.append(Tensor("levels", (representation.num_levels,), "float32"))
    seen = agent.predict_distribution(np.zeros((1, *spec.observation_shape), spec.observation_dtype))
    varying = [name for name in ("levels", "probs") if np.ndim(getattr(seen, name)) > 1]

    def act(*given: Array) -> tuple[Array, ...]:
        by_name = dict(zip((each.name for each in inputs), given, strict=True))
        observation = _join(parts, given[: len(parts)]) if parts else by_name["observation"]
        chosen = _at_levels(agent, by_name["levels"]) if "levels" in by_name else agent.agent
        dist = pool_members(chosen.predict_distribution(params, observation))
        action = chosen.greedy_action(params, observation, by_name.get("mask"))
        action = action + spec.action_start if spec.action_start else action
        return action, dist.values, *(getattr(dist, name) for name in varying)

    shapes = jax.eval_shape(act, *_describe(inputs))
    outputs = (
        Tensor(name, tuple(size if isinstance(size, int) else str(size) for size in each.shape), each.dtype.name)
        for name, each in zip(("action", "values", *varying), shapes, strict=True)
    )
    fixed = levels == "midpoints" and not varying
    shares = np.full(seen.values.shape[-1], 1 / seen.values.shape[-1]) if seen.probs is None else seen.probs
    return Policy(
        act,
        tuple(inputs),
        tuple(outputs),
        np.asarray(seen.levels) if fixed else None,
        np.asarray(shares, np.float32) if fixed else None,
    )


def _list_parts(agent: TrainableAgent) -> tuple[Part, ...]:
    """The parts of an observation, each an input of its own; none where a network wants them as they are stored."""
    return agent.spec.parts if isinstance(agent.config.agent.network.torso, str) else ()


def _name(part: Part) -> str:
    return ".".join(map(str, part.path)) or "observation"


def _join(parts: Sequence[Part], given: Sequence[Array]) -> Array:
    """Observations as a network reads them, from parts as the environment gives them: numbers, never bytes."""
    if len(parts) == 1 and not parts[0].sizes:
        return given[0]
    rows = []
    for part, array in zip(parts, given, strict=True):
        flat = array.reshape(array.shape[0], -1)
        values = zip(part.sizes, part.starts, strict=True)
        found = [flat[:, place, None] == start + jnp.arange(size)[None] for place, (size, start) in enumerate(values)]
        rows += [each.astype(jnp.float32) for each in found or [flat]]
    return jnp.concatenate(rows, axis=1)


def split_observations(agent: TrainableAgent, stored: Shaped[np.ndarray, "batch ..."]) -> Arrays:
    """The inputs that a program has for observations as they are stored."""
    parts = _list_parts(agent)
    if not parts:
        return [stored]
    found = [stored] if len(parts) == 1 else [np.asarray(each) for each in split_parts(jnp.asarray(stored), parts)]
    return [_read_numbers(part, each) if part.sizes else each for part, each in zip(parts, found, strict=True)]


def _read_numbers(part: Part, stored: np.ndarray) -> np.ndarray:
    one_hot = np.split(stored, np.cumsum(part.sizes)[:-1], axis=1)
    values = [start + each.argmax(1) for start, each in zip(part.starts, one_hot, strict=True)]
    return np.stack(values, axis=1).astype(np.int32).reshape(-1, *part.shape)


def _at_levels(agent: TrainableAgent, levels: Array) -> InspectableAgent:
    config = agent.config.agent
    assert isinstance(config.representation, ImplicitQuantiles)
    own = {field.name: getattr(config.representation, field.name) for field in fields(config.representation)}
    return make_agent(replace(config, representation=GivenLevels(**own, given=levels)), agent.spec)


def _describe(tensors: Sequence[Tensor]) -> list[jax.ShapeDtypeStruct]:
    (batch,) = export.symbolic_shape("batch")
    return [
        jax.ShapeDtypeStruct(tuple(batch if size == "batch" else size for size in each.shape), each.dtype)
        for each in tensors
    ]


def write_stablehlo(policy: Policy) -> bytes:
    """The program for `jax.export.deserialize`."""
    return bytes(export.export(jax.jit(policy.function), platforms=PLATFORMS)(*_describe(policy.inputs)).serialize())


def load_stablehlo(program: bytes, policy: Policy) -> Callable[[Arrays], Arrays]:
    """The program as a function."""
    del policy
    loaded = export.deserialize(bytearray(program))
    return lambda inputs: [np.asarray(output) for output in loaded.call(*inputs)]


def write_onnx(policy: Policy) -> bytes:
    """The program as a model of ONNX."""
    require_extra("onnx", "the format onnx")
    jax2onnx, onnx_ir = (importlib.import_module(name) for name in ("jax2onnx", "onnx_ir"))
    passes = importlib.import_module("onnx_ir.passes.common")
    inputs = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in policy.inputs]
    input_names, output_names = ([each.name for each in tensors] for tensors in (policy.inputs, policy.outputs))
    try:
        model = jax2onnx.to_onnx(
            policy.function, inputs, input_names=input_names, output_names=output_names, return_mode="ir"
        )
    except Exception as error:  # of many kinds, from a package that need not know all that an agent may be made of
        raise ExportError(f"jax2onnx cannot write this policy ({error}); the format stablehlo can hold it") from error
    # Actions and distributions come from the same network, which is traced once for each: the second goes.
    passes.DeduplicateInitializersPass()(model)
    passes.CommonSubexpressionEliminationPass()(model)
    logging.getLogger("onnx_ir.serde").setLevel(logging.ERROR)  # shapes without a type, which runtimes infer
    return onnx_ir.to_proto(model).SerializeToString()


def load_onnx(program: bytes, policy: Policy) -> Callable[[Arrays], Arrays]:
    """The program as a function, by ONNX Runtime."""
    runtime = importlib.import_module("onnxruntime")
    try:
        session = runtime.InferenceSession(program, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds, such as for numbers that are read from bytes
        raise ExportError(f"ONNX Runtime cannot run this policy ({error}); the format stablehlo can hold it") from error
    names = [each.name for each in policy.inputs]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


class FormatSpec(NamedTuple):
    """How programs of a format are written and read."""

    file: str
    write: Callable[[Policy], bytes]
    load: Callable[[bytes, Policy], Callable[[Arrays], Arrays]]
    package: str
    """What wrote it, by the name of its package."""


FORMATS: dict[Format, FormatSpec] = {
    "stablehlo": FormatSpec("policy.stablehlo", write_stablehlo, load_stablehlo, "jax"),
    "onnx": FormatSpec("policy.onnx", write_onnx, load_onnx, "jax2onnx"),
}


def measure_difference(
    agent: TrainableAgent,
    policy: Policy,
    run: Callable[[Arrays], Arrays],
    observations: Shaped[np.ndarray, "batch ..."],
) -> float:
    """How far a program is from the agent's own `predict` and `predict_distribution`, in the unit of `TOLERANCE`.

    Another discrete action counts by how much less Q it has, so that rounding may decide between equals. Where actions
    can be masked, masks are drawn; where levels are an input, they are the midpoints.
    """
    count, spec = len(observations), agent.spec
    generator = np.random.default_rng(0)
    allowed = generator.random((count, spec.num_actions)) < 0.5 if spec.has_mask else np.ones((count, 1), bool)
    if spec.has_mask:
        allowed[np.arange(count), generator.integers(spec.num_actions, size=count)] = True
    seen = split_observations(agent, observations)
    others = policy.inputs[len(seen) :]
    inputs = [
        *seen,
        *(midpoints(int(each.shape[0])).astype(np.float32) if each.name == "levels" else allowed for each in others),
    ]
    outputs = dict(zip((each.name for each in policy.outputs), run(inputs), strict=True))
    dist, action = agent.predict_distribution(observations), outputs.pop("action")
    expected = agent.predict(observations, mask=allowed if spec.has_mask else None)
    differences = [_compare(found, getattr(dist, name)) for name, found in outputs.items()]
    if spec.box is None:
        q, rows = np.where(allowed, agent.q(observations), -np.inf), np.arange(count)
        differences.append(_compare(q[rows, action - spec.action_start], q[rows, expected - spec.action_start]))
    else:
        differences.append(_compare(action, expected))
    return float(np.max(differences))


def _compare(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape:
        return np.inf
    return float(np.abs(found - expected).max() / max(1.0, float(np.abs(expected).max())))
