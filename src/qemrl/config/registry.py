"""The parts that can be chosen by name, and which classes a configuration may hold.

A new part is its class and one line here. An axis is known by the dotted name of the setting that it is for.

Naming a part keeps what preset and environment say about it:

- A part of the kind that is there already stays as it is.
- Another one is as in the first preset of `qemrl list` that has it, of the same family of agents and with the settings
  for the same environment; one that no preset has is as it stands here.
- It takes over what both kinds have in common (`kept`): another ensemble has as many critics, another bonus the same
  schedule. A bonus by QEM is by the agent's own QEM, if it has one.

Two parts are of the same kind if they have the same class, and the same class in their `inner` field (the V of an
estimator, the bonus of an exploration), and agree in whatever tells apart names for which all that is the same: so
`qem-atari` and `qem-mujoco` differ in the value of V, `dltv` and `dltv-released` in `released`.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args, get_origin, get_type_hints

from qemrl.agents.names import EnvFamily
from qemrl.agents.policies import AutomaticTemperature, Deterministic, FixedTemperature, TanhGaussian
from qemrl.agents.presets import PRESETS, AgentConfig
from qemrl.agents.target_networks import EMA, Online, Snapshots
from qemrl.config.serialize import is_default, is_record
from qemrl.distributional.atoms import Categorical, GaussianHistogram, Scalar
from qemrl.distributional.bootstrap import Bootstrapped
from qemrl.distributional.ensembles import Averaged, ElementwiseMin, PooledTruncation, SmallestCritic
from qemrl.distributional.expectiles import Expectiles
from qemrl.distributional.fractions import ProposedFractions
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.monotone import NonCrossingQuantiles, NonDecreasingQuantiles, SplineQuantiles
from qemrl.distributional.particles import Particles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.envs.gym.atari import ATARI_PROTOCOLS
from qemrl.estimators import (
    ESTIMATORS,
    QEM,
    BandVariance,
    ConstantVariance,
    CountedVariance,
    DecayingVariance,
    HeadsVariance,
    ResidualVariance,
    SpacingVariance,
    SparsityVariance,
    TailVariance,
)
from qemrl.exploration import (
    BonusExploration,
    CountBonus,
    EpsilonGreedy,
    HeadSampling,
    LeftTruncatedStdBonus,
    LinearDecay,
    PowerDecay,
    QEMStdBonus,
    SqrtLogDecay,
    StdBonus,
)


@dataclass(frozen=True)
class Axis:
    """The parts that one setting can be."""

    parts: Mapping[str, Any]
    """By the name that stands for each."""

    inner: str = ""
    """The field of a part whose class makes it another kind of part."""

    kept: tuple[str, ...] = ()
    """Fields that a part takes over from the one in whose place it is put, where both have them."""

    def is_kind(self, part: Any, name: str) -> bool:
        """Whether a part is of the kind that the name stands for."""
        named, classes = self.parts[name], self._classes(part)
        if self._classes(named) != classes:
            return False
        namesakes = [self._fields(each) for each in self.parts.values() if self._classes(each) == classes]
        own, wanted = self._fields(part), self._fields(named)
        return all(own[key] == wanted[key] for key in own if any(each[key] != wanted[key] for each in namesakes))

    def name(self, part: Any) -> str:
        """The name that stands for a part, or its class where none does."""
        return next((name for name in self.parts if self.is_kind(part, name)), type(part).__name__)

    def _classes(self, part: Any) -> tuple[type, type]:
        return type(part), type(getattr(part, self.inner, None))

    def _fields(self, part: Any) -> dict[str, Any]:
        found = {field.name: getattr(part, field.name) for field in fields(part)} if is_record(part) else {}
        inner = found.pop(self.inner, None)
        own = {f"{self.inner}.{field.name}": getattr(inner, field.name) for field in fields(inner)} if inner else {}
        return found | own


_VARIANCES = {
    "constant": ConstantVariance(),
    "tail": TailVariance(1.5),
    "band": BandVariance(1.5, 0.45, 0.55),
    "spacing": SpacingVariance(),
    "decay": DecayingVariance(),
    "counts": CountedVariance(),
    "sparsity": SparsityVariance(),
    "heads": HeadsVariance(),
    "residuals": ResidualVariance(),
}

AXES: dict[str, Axis] = {
    "protocol": Axis(ATARI_PROTOCOLS),
    "representation": Axis(
        {
            "scalar": Scalar(),
            "categorical": Categorical(),
            "quantiles": FixedQuantiles(),
            "implicit-quantiles": ImplicitQuantiles(),
            "proposed-fractions": ProposedFractions(),
            "non-crossing": NonCrossingQuantiles(),
            "non-decreasing": NonDecreasingQuantiles(),
            "spline": SplineQuantiles(),
            "expectiles": Expectiles(),
            "particles": Particles(),
            "gaussian-histogram": GaussianHistogram(),
            "bootstrapped": Bootstrapped(),
        }
    ),
    "estimator": Axis({name: preset.estimator for name, preset in ESTIMATORS.items()}, inner="variance"),
    "estimator.variance": Axis(_VARIANCES),
    "averaging": Axis({"online": Online(), "ema": EMA(), "snapshots": Snapshots()}),
    "exploration": Axis(
        {
            "epsilon-greedy": EpsilonGreedy(),
            "dltv": BonusExploration(LeftTruncatedStdBonus()),
            "dltv-released": BonusExploration(
                LeftTruncatedStdBonus(released=True), SqrtLogDecay(until_steps=2_000_000), count_from="warm-up"
            ),
            "qem-std-bonus": BonusExploration(QEMStdBonus()),
            "std-bonus": BonusExploration(StdBonus()),
            "count": BonusExploration(CountBonus()),
            "head-sampling": HeadSampling(),
        },
        inner="bonus",
        kept=("schedule", "random_steps", "count_from", "evaluation"),
    ),
    "exploration.schedule": Axis({"sqrt-log": SqrtLogDecay(), "power": PowerDecay(), "linear": LinearDecay()}),
    "ensemble": Axis(
        {
            "elementwise-min": ElementwiseMin(),
            "smallest-critic": SmallestCritic(),
            "pooled-truncation": PooledTruncation(),
            "averaged": Averaged(),
        },
        kept=("size",),
    ),
    "policy": Axis({"tanh-gaussian": TanhGaussian(), "deterministic": Deterministic()}),
    "temperature": Axis({"fixed": FixedTemperature(), "automatic": AutomaticTemperature()}),
}
"""In the order in which they are chosen: an exploration may ask for the estimator."""


def make_part(path: str, name: str, present: Any, agent: type[AgentConfig], family: EnvFamily, estimator: Any) -> Any:
    """The part that a name stands for here.

    Args:
        path: The setting.
        name: A name of its axis.
        present: What is there.
        agent: The class of the agent's configuration.
        family: Whose settings the environment has.
        estimator: The agent's estimator.
    """
    axis = AXES[path]
    if axis.is_kind(present, name):
        return present
    presets = [preset.configure(family) for preset in PRESETS.values()]
    parts = [_find(preset, path) for preset in presets if isinstance(preset, agent)]
    part = next((each for each in parts if axis.is_kind(each, name)), axis.parts[name])
    bonus = getattr(part, "bonus", None)
    if isinstance(bonus, QEMStdBonus) and isinstance(estimator, QEM) and estimator.order > 1:
        part = replace(part, bonus=replace(bonus, estimator=estimator.with_fixed_variance))
    named = axis.parts[name]
    free = {field.name for field in fields(named) if is_default(named, field)}
    kept = [field for field in axis.kept if hasattr(present, field) and field in free]
    return replace(part, **{field: getattr(present, field) for field in kept}) if kept else part


def _find(record: Any, path: str) -> Any:
    for name in path.split("."):
        record = getattr(record, name, None)
    return record


def collect_classes(root: type) -> dict[str, type]:
    """The dataclasses that a configuration may hold, by name: all that its annotations and the axes lead to."""
    found: dict[str, type] = {}
    waiting = [root, *(type(part) for axis in AXES.values() for part in axis.parts.values())]
    waiting += [type(getattr(part, axis.inner, None)) for axis in AXES.values() for part in axis.parts.values()]
    while waiting:
        kind = waiting.pop()
        if dataclasses.is_dataclass(kind):
            if found.setdefault(kind.__name__, kind) is not kind:
                raise ValueError(f"two classes are called {kind.__name__}, and a file could not tell them apart")
            hints = get_type_hints(kind)
            for field in fields(kind):
                waiting += [each for each in _members(hints[field.name]) if each.__name__ not in found]
    return dict(sorted(found.items()))


def _members(annotation: Any) -> Iterator[type]:
    """The dataclasses in an annotation."""
    origin = get_origin(annotation)
    for each in (annotation, origin):
        if isinstance(each, type) and dataclasses.is_dataclass(each):
            yield each
    for member in get_args(annotation):
        yield from _members(member)
