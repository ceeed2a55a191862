"""Values that nobody should give, and that somebody will."""

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

HOSTILE_JSON = (
    *("null", "true", "false", "0", "1", "-1", "2.5", "1e308", "-1e308", "NaN", "Infinity", "[]", "{}", '""'),
    *('"x"', '"\\ud800"', '"[red]x[/red]"', '"<script>alert(1)</script>"', '"../../x"', '"\\u0000"', '"|O"'),
    *("[[]]", '{"a": {}}', "[0]", "[1, 2, 3]", "300000000", "1099511627776", "9" * 400, "9" * 5_000, "-" + "9" * 30),
    *("[" * 500 + "]" * 500, "[" * 100_000 + "]" * 100_000, '"canary_of_chaos:CartPole-v1"', '"' + "x" * 100_000 + '"'),
    *('"float64"', '["__import__"]', '"CartPole-v1"', '"jax/catch"', '"qr-dqn"', "1e-300", '"1e5"', '"٣"'),
)
"""JSON texts, to be put in the place of values."""

TEXTS = (
    *("", " ", "x", "4", "2.5", "1e5", "-1", "0", "nan", "inf", "-inf", "none", "null", "true", "false", "yes", "[]"),
    *("[1", "1 2 3", "1,2", "{}", "9" * 30, "9" * 400, "9" * 5_000, "1e400", "0x10", "1_000", "٣", "\ud800", "\0"),
    *("[red]x[/red]", "[/]", "../../x", "/", "~", "a b", "a=b", "--x", "-", "%s", "{x}", "\\", "x" * 10_000, "NaN%"),
    *("qr-dqn", "iqn", "CartPole-v1", "jax/catch", ".x:y", ":", "a:", ":b", "sys:exit", "module:Id", "None", "lambda"),
    *("3e8", "1e9", "1e12", "1e15", "1e30", "-3", "0.5", "1.0", "0.999999", "[16, 0]", "[-1]", "[16]", "16 16", "[[]]"),
)
"""Words of a command line, and text where a number or a name belongs."""


def draw_array(chance: random.Random) -> np.ndarray:
    """An array of a shape, dtype and content that may make no sense."""
    dtypes = ("f8", "f4", "f2", "i8", "i1", "u1", "?", "c16", "O", "U3", "S2", "M8[s]", ">f8", "f8", "f8")
    shape = chance.choice(((), (0,), (1,), (2,), (5,), (32,), (0, 5), (5, 0), (3, 5), (2, 3, 5), (5, 1), (1, 1, 1, 1)))
    source = np.random.default_rng(chance.randrange(2**32))
    array = source.normal(size=shape)
    if chance.random() < 0.3 and array.size:
        array.flat[chance.randrange(array.size)] = chance.choice((math.nan, math.inf, -math.inf, 1e308, 0.0))
    with np.errstate(all="ignore"):
        array = np.asarray(array * 10).astype(chance.choice(dtypes))
    if chance.random() < 0.1:
        array = np.broadcast_to(array, (4, *shape))
    return array[..., ::-1] if array.ndim and chance.random() < 0.1 else array


def draw_hostile(chance: random.Random) -> Any:
    """A value of any kind."""
    scalars: Sequence[Any] = (
        *(None, True, False, 0, 1, -1, 2, 4, 7, 2.5, -0.0, 1e-300, 1e308, math.nan, math.inf, -math.inf, 1j, b"x"),
        *(10**30, -(10**30), 10**400, 2**63, np.float32(1.5), np.int64(3), np.bool_(True), np.datetime64("2020"), ...),
    )
    containers: Sequence[Any] = (
        *((), [], {}, set(), [[]], [None], ["x"], [1, "x"], [[1, 2], [3]], {"a": 1}, {"a": {"b": None}}, {1: 2}),
        *(range(3), [0.1, 0.5, 0.9], (0.5,), [math.nan], [True, False], [1e400], object(), object, len, lambda: None),
        *(NotImplemented, slice(1), memoryview(b"abc"), iter([1]), ValueError("x"), np, np.random.default_rng(0)),
    )
    kind = chance.randrange(4)
    if kind == 0:
        return draw_array(chance)
    if kind == 1:
        return chance.choice(TEXTS)
    return chance.choice(scalars if kind == 2 else containers)
