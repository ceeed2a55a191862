"""NumPy, JAX and PyTorch behind one interface.

The mathematics of this package is written once, on the array API. This module holds the few things that the
array API does not cover. It never imports JAX or PyTorch: an array of theirs can only reach us if the caller
has imported them already.
"""

import importlib
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import array_api_compat as compat
import numpy as np
from scipy import special

Array = Any
"""An array of any of the three libraries; shapes stand in the annotations around it."""


def is_jax(array: Array) -> bool:
    """Whether it is an array of JAX, or a trace of one."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.Array)


def is_torch(array: Array) -> bool:
    """Whether it is a tensor of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def namespace(array: Array) -> Any:
    """The array-API namespace of `array`."""
    if is_torch(array):  # without the look-up of array_api_compat, over whose cache `torch.compile` stumbles
        name = "array_api_compat.torch"
        return sys.modules[name] if name in sys.modules else importlib.import_module(name)
    return compat.array_namespace(array)


def as_array(given: Any, name: str, axes: int = 1) -> Array:
    """`given` as a floating-point array: arrays stay what they are, numbers and lists become NumPy float64.

    It must have so many axes at least.
    """
    # What is right already is recognized first; a compiler of PyTorch could not follow further than that.
    if isinstance(given, np.ndarray):
        if given.dtype.kind == "f" and given.ndim >= axes:
            return given
    elif is_torch(given) and given.dtype.is_floating_point and given.ndim >= axes:
        return given
    data: Array = given if isinstance(given, np.ndarray) or compat.is_array_api_obj(given) else np.asarray(given)
    if data.ndim < axes:
        raise ValueError(f"{name} need at least {'one axis' if axes == 1 else f'{axes} axes'}, got {data}")
    if isinstance(data, np.ndarray) and data.dtype.kind == "f":
        return data
    xp = namespace(data)
    if xp.isdtype(data.dtype, "real floating"):
        return data
    if xp.isdtype(data.dtype, ("bool", "integral")):
        return xp.astype(data, xp.__array_namespace_info__().default_dtypes()["real floating"])
    raise ValueError(f"{name} must be real numbers, got an array of {data.dtype}")


def is_on_host(array: Array) -> bool:
    """True if the numbers can be read here and now: no trace in the way, no accelerator to wait for."""
    if is_jax(array):
        if isinstance(array, sys.modules["jax"].core.Tracer):
            return False
        return all(device.platform == "cpu" for device in array.devices())
    if is_torch(array):
        torch = sys.modules["torch"]
        if torch.compiler.is_compiling():
            return False
        in_transform = torch._C._functorch.maybe_current_level() is not None  # torch.func
        return array.device.type == "cpu" and not in_transform
    return True


def wants_gradient(array: Array) -> bool:
    """True for a PyTorch tensor that autograd follows; in JAX such an array is a tracer."""
    return is_torch(array) and array.requires_grad


def view(array: Array) -> np.ndarray:
    """The numbers of an array that `is_on_host`, in NumPy; copied only if NumPy has no such dtype."""
    if is_torch(array):
        array = promote(array.detach()).numpy()
    return np.asarray(array)


def read(array: Array) -> np.ndarray:
    """The numbers of an array that `is_on_host`, in NumPy float64."""
    return np.asarray(view(array), dtype=np.float64)


def constant(array: np.ndarray, model: Array) -> Array:
    """A NumPy array in the library, dtype and device of `model`."""
    if is_torch(model):
        return sys.modules["torch"].tensor(array, dtype=model.dtype, device=model.device)
    return namespace(model).asarray(array, dtype=model.dtype)


def cached_constant(model: Array, make: Callable[..., np.ndarray], *key: Any) -> Array:
    """`make(*key)` in the library, dtype and device of `model`; in PyTorch it is brought there once."""
    if is_torch(model) and not sys.modules["torch"].compiler.is_compiling():
        return _torch_constant(make, model.dtype, model.device, *key)
    return constant(make(*key), model)


@lru_cache(maxsize=256)
def _torch_constant(make: Callable[..., np.ndarray], dtype: Any, device: Any, *key: Any) -> Array:
    torch = sys.modules["torch"]
    with torch.inference_mode(False):  # or autograd could not use it later
        return torch.tensor(make(*key), dtype=dtype, device=device)


def like(array: Array, model: Array, name: str) -> Array:
    """`array` in the library, dtype and device of `model`; across libraries only from or to NumPy."""
    if namespace(array) is namespace(model):
        return in_dtype(array, model.dtype)
    if is_on_host(array) and (compat.is_numpy_array(array) or compat.is_numpy_array(model)):
        return constant(read(array), model)
    raise ValueError(f"{name} are a {type(array).__name__}, but the values are a {type(model).__name__}")


def scalar(number: Any, model: Array) -> Array:
    """A number, or an array without axes, in the library, dtype and device of `model`."""
    if compat.is_array_api_obj(number) and namespace(number) is namespace(model):
        return in_dtype(number, model.dtype)
    return constant(np.asarray(number, dtype=np.float64), model)


def eye(size: int, model: Array) -> Array:
    """The identity matrix in the library, dtype and device of `model`."""
    return constant(np.eye(size), model)


def add_axes(array: Array, rank: int) -> Array:
    """`array` with axes of size one before its own, up to `rank` in all."""
    missing = rank - array.ndim
    return array if missing <= 0 else namespace(array).reshape(array, (1,) * missing + tuple(array.shape))


def pick(array: Array, places: list[int]) -> Array:
    """The entries of the last axis at the given places."""
    indices: Any = np.asarray(places)
    if is_torch(array):
        indices = sys.modules["torch"].tensor(places, device=array.device)
    return array[..., indices]


def in_dtype(array: Array, dtype: Any) -> Array:
    """`array` in `dtype`."""
    return array if array.dtype == dtype else namespace(array).astype(array, dtype)


def promote(array: Array) -> Array:
    """`array`, in float32 if it is narrower: sixteen bits are too few to add up and to solve in."""
    return array if array.dtype.itemsize >= 4 else in_dtype(array, namespace(array).float32)


def resolution(array: Array) -> float:
    """The spacing of floating-point numbers at one in the dtype of `array`."""
    return float(namespace(array).finfo(array.dtype).eps)


def ndtri(levels: Array) -> Array:
    """The standard normal quantile z, Φ(z) = level, for levels in [1e-10, 1 − 1e-10]."""
    if is_jax(levels):
        return _rational_ndtri(levels)
    if is_torch(levels):
        torch = sys.modules["torch"]
        # The compiler of PyTorch computes its own again in every loop that reads it, one number at a time.
        return _rational_ndtri(levels) if torch.compiler.is_compiling() else torch.special.ndtri(levels)
    return special.ndtri(levels)


# Wichura (1988), algorithm AS 241, routine PPND16, for |τ − 1/2| up to 0.425 and beyond: numerator and
# denominator, highest power first. Its third pair serves levels below exp(−25), which never get here.
_CENTER = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457)
    + (13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.3871328727963666080),
    (5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867)
    + (5394.1960214247511077, 687.18700749205790830, 42.313330701600911252, 1.0),
)
_TAIL = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.241780725177450611770, 1.27045825245236838258)
    + (3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 0.0151986665636164571966, 0.148103976427480074590)
    + (0.689767334985100004550, 1.67638483018380384940, 2.05319162663775882187, 1.0),
)


def _rational_ndtri(levels: Array) -> Array:
    """The normal quantile for compilers; in JAX it takes two thirds of `jax.scipy.special.ndtri` on a CPU."""
    xp = namespace(levels)
    offset = levels - 0.5
    central = xp.abs(offset) <= 0.425
    near = 0.180625 - offset * offset
    far = xp.sqrt(-xp.log(xp.minimum(levels, 1 - levels))) - 1.6
    numerator = xp.where(central, offset * _horner(_CENTER[0], near), xp.sign(offset) * _horner(_TAIL[0], far))
    return numerator / xp.where(central, _horner(_CENTER[1], near), _horner(_TAIL[1], far))


def _horner(coefficients: tuple[float, ...], x: Array) -> Array:
    result = coefficients[0] + 0 * x
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def dot(values: Array, weights: Array) -> Array:
    """The product of `values` (*batch, n) and `weights` (n,) or (n, m), at full precision.

    It is used wherever one would write `sum(values * weights, axis=-1)`: XLA vectorizes it on CPUs, unlike that
    sum and unlike the plain mean. On accelerators JAX multiplies matrices in TF32 or bfloat16 unless told
    otherwise, and three digits are not enough for Q.
    """
    if is_jax(values):
        return namespace(values).matmul(values, weights, precision="highest")
    return values @ weights


def total(array: Array) -> Array:
    """The sum over the last axis; as a `dot`, but in PyTorch, where that would take a vector of ones from the host."""
    if is_torch(array):
        return array.sum(-1)
    return dot(array, constant(np.ones(array.shape[-1]), array))
