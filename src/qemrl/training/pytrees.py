"""The state of loops as arrays with names, which checkpoints store, and back."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def flatten(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a pytree by their paths; a typed key is its data, and its path ends in `|` and its kind.

    Where JAX shares its memory with NumPy, these are views: as long as they are held, JAX copies what it would
    otherwise overwrite.
    """
    arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        if not _is_array(leaf):
            continue
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise ValueError(f"{name} has no values: it is a {leaf}")
        if _is_key(leaf):
            name, leaf = f"{name}|{jax.random.key_impl(leaf)}", jax.random.key_data(leaf)
        if name in arrays:
            raise ValueError(f"two leaves have the path {name}")
        arrays[name] = np.asarray(leaf)
    return arrays


def unflatten(template: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The pytree of `flatten`: the template with its arrays replaced; whatever is not an array stays as it is there.

    The template's arrays may be `jax.ShapeDtypeStruct`s. NumPy arrays come back as NumPy arrays, all others as JAX's.

    Raises:
        ValueError: A leaf is missing, left over, or of another shape, dtype or kind of key.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    keys = {name.rpartition("|")[0]: name for name in arrays if "|" in name}
    places = [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]
    names = {path: keys.get(path, f"{path}|") if _is_key(leaf) else path for path, leaf in places if _is_array(leaf)}
    missing = [path for path, name in names.items() if name not in arrays]
    extra = sorted(set(arrays) - set(names.values()))
    if missing or extra:
        raise ValueError(
            f"the arrays do not fit the template: missing {_some(missing)}; left over {_some(extra)}; "
            "were they written with another configuration or version?"
        )
    restored = [
        _restore(path, leaf, names[path], arrays[names[path]]) if _is_array(leaf) else leaf for path, leaf in places
    ]
    return jax.tree_util.tree_unflatten(structure, restored)


def _restore(path: str, leaf: Any, name: str, array: np.ndarray) -> Any:
    value: Any = array
    if _is_key(leaf):
        try:
            value = jax.random.wrap_key_data(jnp.array(array), impl=name.rpartition("|")[2])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} does not hold the data of keys: {error}") from error
    if value.shape != leaf.shape or value.dtype != leaf.dtype:
        raise ValueError(f"{path} is {value.dtype}{list(value.shape)}, but {leaf.dtype}{list(leaf.shape)} is expected")
    if isinstance(leaf, np.generic):
        return array[()]
    if isinstance(leaf, np.ndarray) or _is_key(leaf):
        return value
    value = jnp.array(array)  # a copy: JAX's arrays must not change with NumPy's
    if value.dtype != leaf.dtype:
        raise ValueError(f"{path} is {leaf.dtype}, which JAX has only with jax_enable_x64")
    return value


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def _is_key(leaf: Any) -> bool:
    return _is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _some(names: list[str]) -> str:
    shown = ", ".join(name or "the root" for name in names[:5]) or "nothing"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
