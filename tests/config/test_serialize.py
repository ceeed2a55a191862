"""Frozen dataclasses as JSON and back."""

import enum
import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qemrl
from qemrl.config.serialize import GivenFunction, find_given, from_json, to_json, without_defaults
from qemrl.config.suggestions import nearest, suggestion

MEAN, CONSTANT = qemrl.EmpiricalMean(), qemrl.ConstantVariance()


class Net(Protocol):
    @property
    def width(self) -> int: ...


@dataclass(frozen=True)
class Layer:
    width: int
    name: str = "layer"
    bias: bool = True


@dataclass(frozen=True)
class Settings:
    rate: float
    steps: int
    net: Net
    name: str = "run"
    activation: Literal["relu", "tanh"] = "relu"
    folder: Path = Path("runs")
    limit: float | None = None
    either: float | int | str = 0.0
    sizes: tuple[int, ...] = ()
    pair: tuple[str, float] = ("a", 1.0)
    layers: tuple[Layer, ...] = ()
    estimator: qemrl.Estimator = MEAN
    schedule: Callable[[Any], Any] = CONSTANT
    anything: Any = None
    width: int = field(init=False, default=7)


@dataclass
class Thawed:
    value: int = 0


@dataclass(frozen=True)
class Typed:
    type: str


class Color(enum.IntEnum):
    RED = 1


class Pair(NamedTuple):
    a: int
    b: int


CLASSES = [Layer, Settings, qemrl.QEM, qemrl.EmpiricalMean, qemrl.TailVariance, qemrl.ConstantVariance]
REGISTRY = {cls.__name__: cls for cls in CLASSES}

reals = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(max_size=8)
layers = st.builds(Layer, st.integers(), names, st.booleans())
positive = st.floats(0.1, 10)
variances = st.builds(qemrl.ConstantVariance, positive) | st.builds(qemrl.TailVariance, positive, st.floats(0.01, 0.5))
estimators = st.just(qemrl.EmpiricalMean()) | st.builds(qemrl.QEM, st.integers(1, 6), variances)
scalars = st.none() | st.booleans() | st.integers() | reals | names
anythings = st.recursive(scalars | layers, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
settings = st.builds(
    Settings,
    rate=reals,
    steps=st.integers(),
    net=layers,
    name=names,
    activation=st.sampled_from(["relu", "tanh"]),
    folder=st.sampled_from([Path("a/b"), Path("/x"), Path()]),
    limit=st.none() | reals,
    either=reals | st.integers() | names,
    sizes=st.lists(st.integers(), max_size=3).map(tuple),
    pair=st.tuples(names, reals),
    layers=st.lists(layers, max_size=2).map(tuple),
    estimator=estimators,
    schedule=variances,
    anything=anythings,
)


def there_and_back(value: Any) -> Any:
    return from_json(json.loads(json.dumps(to_json(value), allow_nan=False)), REGISTRY)


@given(settings)
def test_nested_dataclasses_come_back_equal_and_with_the_same_types(value):
    back = there_and_back(value)
    assert back == value
    assert repr(back) == repr(value)  # 3 and 3.0 are equal, but not the same
    assert hash(back) == hash(value)


def test_an_estimator_reads_well_and_comes_back():
    estimator = qemrl.QEM(variance=qemrl.TailVariance(1.5))
    assert to_json(estimator) == {
        "type": "QEM",
        "order": 4,
        "variance": {"type": "TailVariance", "value": 1.5, "tail": 0.1},
        "basis": "hermite",
    }
    assert there_and_back(estimator) == estimator


def test_numpy_numbers_are_stored_as_numbers():
    assert to_json((np.int64(3), np.float64(0.5), np.float32(0.5), np.bool_(True))) == [3, 0.5, 0.5, True]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Layer(math.nan), "width: nan is not finite"),  # type: ignore[arg-type]
        ((1.0, math.inf), r"\[1\]: inf is not finite"),
        (Settings(1.0, 1, Layer(1), sizes=[1]), "sizes: a value of type list"),  # type: ignore[arg-type]
        (Settings(1.0, 1, Layer(1), anything=Pair(1, 2)), "anything: a value of type Pair"),
        (Settings(1.0, 1, Layer(1), layers=(Layer(1), Layer(Color.RED))), r"layers\[1\].width: .* Color"),
        (Thawed(), "Thawed is not frozen"),
        (Typed("a"), "Typed has a field 'type'"),
        ({"a": 1}, "a value of type dict"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(value, message):
    with pytest.raises(ValueError, match=message):
        to_json(value)


def test_of_a_function_the_name_is_stored_and_what_is_read_cannot_be_called():
    def double(levels):
        return 2 * levels

    place = "test_of_a_function_the_name_is_stored_and_what_is_read_cannot_be_called"
    for function in (double, functools.partial(double)):
        back = there_and_back(qemrl.QEM(variance=function))
        assert list(find_given(back)) == [("variance", GivenFunction(f"{place}.double"))]
        assert to_json(back) == to_json(qemrl.QEM(variance=function))
        with pytest.raises(ValueError, match="double` was handed over from Python and cannot be read from a file"):
            back.mean(np.arange(5.0), qemrl.midpoints(5))
    with pytest.raises(ValueError, match="expects"):  # a field that holds no function
        from_json({"type": "Layer", "width": {"type": "GivenFunction", "name": "double"}}, REGISTRY)


GOOD = {"type": "Settings", "rate": 0.5, "steps": 10, "net": {"type": "Layer", "width": 3}}


def test_absent_fields_take_their_defaults_and_whole_numbers_serve_as_reals():
    assert from_json(GOOD | {"rate": 1}, REGISTRY) == Settings(1.0, 10, Layer(3))
    assert type(from_json(GOOD | {"rate": 1}, REGISTRY).rate) is float
    assert type(from_json(GOOD | {"either": 1}, REGISTRY).either) is int


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "Setings"}, "the value: unknown class 'Setings'; did you mean 'Settings'"),
        ({"type": ["a"]}, "unknown class"),
        ({"stepz": 3}, "Settings has no field 'stepz'; did you mean 'steps'"),
        ({"width": 7}, "Settings has no field 'width'; known: activation"),
        ({"estimator": {"type": "QEN"}}, "estimator: unknown class 'QEN'; did you mean 'QEM'"),
        ({"estimator": {"order": 4}}, "estimator: an object needs the name of its class"),
        (
            {"estimator": {"type": "QEM", "variance": {"type": "TailVariance", "vale": 1}}},
            "estimator.variance: .*'value'",
        ),
        ({"estimator": {"type": "QEM", "order": 9}}, "estimator: order must be between 1 and 6, got 9"),
        ({"estimator": {"type": "TailVariance", "value": 1.5}}, "estimator: expects Estimator, got 'TailVariance'"),
        ({"schedule": {"type": "Layer", "width": 3}}, "schedule: expects .*Callable.*, got 'Layer'"),
        ({"net": {"type": "Layer"}}, "net: Layer needs the field 'width', which is missing"),
        ({"net": 3}, "net: expects Net, got 3"),
        ({"layers": [{"type": "Layer", "width": "x"}]}, r"layers\[0\].width: expects int, got 'x'"),
        ({"layers": [{"type": "EmpiricalMean"}]}, r"layers\[0\]: expects Layer, got 'EmpiricalMean'"),
        ({"layers": 3}, "layers: expects tuple"),
        ({"steps": 3.0}, "steps: expects int, got 3.0"),
        ({"steps": True}, "steps: expects int, got True"),
        ({"steps": [3]}, r"steps: expects int, got \[3\]"),
        ({"rate": "fast"}, "rate: expects float, got 'fast'"),
        ({"rate": math.nan}, "rate: nan is not finite"),
        ({"rate": 2**60}, "rate: expects float"),
        ({"limit": "none"}, "limit: expects float | None, got 'none'"),
        ({"activation": "rellu"}, "activation: 'rellu' is none of the choices; did you mean 'relu'"),
        ({"pair": ["a"]}, "pair: expects 2 items, got 1"),
        ({"folder": 3}, "folder: expects a path, got 3"),
        ({"name": None}, "name: expects str, got None"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        from_json(GOOD | change, REGISTRY)


def test_fields_that_hold_their_defaults_are_left_out():
    assert without_defaults(Settings(0.5, 10, Layer(3))) == {
        "type": "Settings",
        "rate": 0.5,
        "steps": 10,
        "net": {"type": "Layer", "width": 3},
    }
    full = Settings(0.5, 10, Layer(3, bias=False), limit=1.0, layers=(Layer(1),), estimator=qemrl.QEM(order=3))
    assert without_defaults(full) == {
        "type": "Settings",
        "rate": 0.5,
        "steps": 10,
        "net": {"type": "Layer", "width": 3, "bias": False},
        "limit": 1.0,
        "layers": [{"type": "Layer", "width": 1}],
        "estimator": {"type": "QEM", "order": 3},
    }


@given(settings)
def test_what_is_left_without_defaults_is_read_as_the_same(value):
    assert from_json(json.loads(json.dumps(without_defaults(value))), REGISTRY) == value


def test_a_new_field_with_a_default_changes_nothing_that_is_kept():
    def make(*further):
        inner = make_dataclass("Inner", [("a", int), ("b", int, 2), *further], frozen=True)
        outer = make_dataclass(
            "Outer", [("x", inner), ("y", inner, field(default_factory=lambda: inner(7))), *further], frozen=True
        )
        return outer(inner(1), inner(5)), outer(inner(1, 3))

    before, after = make(), make(("new", float, 0.5), ("part", tuple, ()))
    assert [without_defaults(each) for each in before] == [without_defaults(each) for each in after]
    assert without_defaults(before[0]) != without_defaults(before[1])


def test_a_suggestion_is_the_nearest_name_or_all_of_them():
    assert suggestion("qem-dnq", ["qem-dqn", "iqn"]) == "did you mean 'qem-dqn'?"
    assert suggestion("zzzz", ["b", "a"]) == "known: a, b"
    assert suggestion("a", []) == "there are none to choose from"
    assert suggestion("zzzz", ["b", "a"], "see the manual") == "see the manual"


def test_a_dotted_name_is_known_by_its_end():
    names = ["optimizer.learning_rate", "replay.n_step", "steps"]
    assert nearest("learning_rate", names) == "optimizer.learning_rate"
    assert nearest("network.learning_rate", names) == "optimizer.learning_rate"
    assert nearest("n_stepp", names) == "replay.n_step"
    assert nearest("step", names) == "steps"
    assert nearest("step", names, cutoff=0.95) is None
