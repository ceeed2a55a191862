"""Extras: whether what a feature needs is installed, and how to install it, in the words that all messages share."""

import importlib.util

PACKAGES = {
    "onnx": ("jax2onnx", "onnxruntime"),
    "sb3": ("sb3_contrib",),
    "tensorboard": ("tensorboard",),
    "tianshou": ("tianshou",),
    "torch": ("torch",),
    "tune": ("optuna",),
    "wandb": ("wandb",),
}
"""The modules without which a feature cannot begin, by the extra that brings them."""


class MissingExtra(ImportError, ValueError):  # noqa: N818 - what it is, not that it is an error
    """An extra of this package that is not installed."""


def how_to_install(extra: str) -> str:
    """The command that installs an extra of this package, as it is installed and as it is in a clone."""
    return f"run: pip install 'qemrl[{extra}]' (in a clone: pip install -e '.[{extra}]')"


def require_extra(extra: str, what: str) -> None:
    """Raise unless an extra is installed.

    Args:
        extra: One of `PACKAGES`.
        what: What needs it, as the user calls it.

    Raises:
        MissingExtra: It is not; the message says how to install it.
    """
    if any(importlib.util.find_spec(name) is None for name in PACKAGES[extra]):
        raise MissingExtra(f"{what} needs a package that is not installed; {how_to_install(extra)}")
