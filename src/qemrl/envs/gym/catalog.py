"""Which Gymnasium environment an id names, and what to say where it names none."""

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.envs.registration import load_env_creator

from qemrl.extras import how_to_install

_ALE_ENTRY = "ale_py.env:AtariEnv"

_PACKAGES = {"MinAtar/": "minatar", "MiniGrid-": "minigrid", "BabyAI-": "minigrid"}
"""The pip package that registers ids which begin so."""

_INSTALL = {
    "box2d": "run: pip install 'gymnasium[box2d]'",
    "mujoco": how_to_install("mujoco"),
    "ale_py": how_to_install("atari"),
}
"""How to install what environments of this module cannot be built without."""


class UnknownEnvironment(ValueError):  # noqa: N818 - what it is, not that it is an error
    """An id that names no environment."""


class MissingPackage(ValueError):  # noqa: N818 - what it is, not that it is an error
    """An environment whose package is not installed."""


def is_atari(env_id: str) -> bool:
    """Whether an id names an Atari game of the Arcade Learning Environment, installed or not."""
    name = env_id.rpartition(":")[2]
    if name in gymnasium.registry:
        return gymnasium.registry[name].entry_point == _ALE_ENTRY
    if name.startswith("ALE/") or re.search(r"(NoFrameskip|Deterministic)-v\d+$", name):
        return True
    # the oldest ids, such as Pong-v4, look like any other; they are known once ale_py is imported
    if not re.search(r"-v[04]$", name) or importlib.util.find_spec("ale_py") is None:
        return False
    import_ale(env_id)
    return name in gymnasium.registry and gymnasium.registry[name].entry_point == _ALE_ENTRY


def import_ale(env_id: str) -> ModuleType:
    """The module ale_py, whose games are then registered with Gymnasium."""
    try:
        ale_py = importlib.import_module("ale_py")
    except ImportError as error:
        raise MissingPackage(f"{env_id} is an Atari game; {how_to_install('atari')}") from error
    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # otherwise it prints a banner
    return ale_py


def split_id(env_id: str) -> tuple[str, str]:
    """The module that has to be imported for an environment, empty if there is none, and its id in the registry."""
    module, _, name = env_id.rpartition(":")
    return module, name


def _import_module(name: str) -> None:
    """Import a module, from the working folder too: this one alone, which may hide no other."""
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        places = [Path(f"{top}.py"), Path(top, "__init__.py")]
        found = next((place for place in places if place.is_file()), None)
        if found is not None:
            spec = importlib.util.spec_from_file_location(top, found.resolve())
            assert spec is not None
            assert spec.loader is not None
            sys.modules[top] = module = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[top]
                raise
    importlib.import_module(name)


def find_environment(env_id: str, also: Sequence[str] = ()) -> Registration:
    """What is registered under an id.

    Args:
        env_id: An id of Gymnasium, `module:id` where a module has to be imported to register it.
        also: More names that exist elsewhere, to suggest where the id is unknown.
    """
    module, name = split_id(env_id)
    if module:
        try:
            _import_module(module)
        except ModuleNotFoundError as error:
            raise MissingPackage(f"{env_id} needs the module {module!r}, which cannot be imported: {error}") from error
    if is_atari(name):
        import_ale(name)
    if name in gymnasium.registry:
        registration = gymnasium.registry[name]
        if _is_withdrawn(registration):
            raise UnknownEnvironment(
                f"{env_id} needed mujoco-py, which is no longer maintained, and Gymnasium only keeps its name; "
                f"use {_find_newest(name)} (its returns are not comparable)"
            )
        return registration
    for prefix, package in _PACKAGES.items():
        if name.startswith(prefix) and not any(known.startswith(prefix) for known in gymnasium.registry):
            hint = f"pip install {package}, and name the environment {package}:{name}"
            raise MissingPackage(f"no package that registers {name} is imported; run: {hint}")
    found = _suggest_ids(name, also)
    meant = f"did you mean {' or '.join(found)}?" if found else "gymnasium.pprint_registry() lists all that are known"
    raise UnknownEnvironment(
        f"unknown environment {env_id!r}: {meant} (an id of a package of its own is written module:id)"
    )


def missing_package(registration: Registration, error: Exception) -> MissingPackage:
    """The error to raise where building a registered environment failed for want of a package."""
    where = str(registration.entry_point)
    newest = _find_newest(registration.id)
    if "mujoco" in where and newest != registration.id and importlib.util.find_spec("mujoco") is not None:
        return MissingPackage(
            f"{registration.id} cannot be built with the MuJoCo that is installed; use {newest} ({error})"
        )
    known = [command for part, command in _INSTALL.items() if part in where]
    advice = known[0] if known else "see the end of this message for what to install"
    return MissingPackage(f"{registration.id} needs a package that is not installed; {advice} ({error})")


def wrong_kwargs(registration: Registration, kwargs: Mapping[str, Any], error: TypeError) -> ValueError:
    """The error to raise where an environment was not built because of what it was to be built with."""
    made = registration.entry_point
    creator = load_env_creator(made) if isinstance(made, str) else made
    takes = [] if creator is None else [name for name in inspect.signature(creator).parameters if name != "kwargs"]
    known = f"it takes {', '.join(takes)}" if takes else "it takes none"
    reason = str(error).partition(" was raised from")[0]  # what follows says the same again
    return ValueError(f"{registration.id} cannot be made with {dict(kwargs)!r}: {reason}; {known}")


@contextmanager
def ignore_age_warnings(registration: Registration) -> Iterator[None]:
    """A context in which building a MuJoCo environment gives no deprecation warnings.

    Published results are of version 4 as often as of 5, so whoever names it wants it. And MuJoCo itself warns of a word
    in Gymnasium's model of HalfCheetah, at every copy: on the screen, and in MUJOCO_LOG.TXT in the working directory.
    """
    if "mujoco" not in str(registration.entry_point) or importlib.util.find_spec("mujoco") is None:
        yield
        return
    mujoco: Any = importlib.import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None if "is deprecated" in text else warnings.warn(text, stacklevel=2))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*The environment \S+ is out of date", DeprecationWarning)
            yield
    finally:
        mujoco.set_mju_user_warning(before)


def _is_withdrawn(registration: Registration) -> bool:
    """Whether Gymnasium registers an id only to say that its environment is gone, as for MuJoCo before version 4."""
    return getattr(registration.entry_point, "__name__", None) == "_raise_mujoco_py_error"


def _find_newest(name: str) -> str:
    """The id of the newest version of an environment."""
    stem = name.rpartition("-v")[0]
    return max((it for it in gymnasium.registry.values() if it.id.rpartition("-v")[0] == stem), key=_version).id


def _version(registration: Registration) -> int:
    return registration.version or 0


def _suggest_ids(name: str, also: Sequence[str]) -> list[str]:
    if importlib.util.find_spec("ale_py") is not None:
        import_ale(name)
    # ids that skip a random number of frames or are withdrawn are known, but nobody should be led to them
    hidden = {
        known
        for known, it in gymnasium.registry.items()
        if isinstance(it.kwargs.get("frameskip"), tuple) or _is_withdrawn(it)
    }
    ids = {known.lower(): known for known in [*also, *gymnasium.registry] if known not in hidden}
    stems: dict[str, list[str]] = {}
    for known in ids.values():
        stems.setdefault(_stem(known), []).append(known)
    close = [ids[match] for match in difflib.get_close_matches(name.lower(), list(ids), n=3, cutoff=0.7)]
    for stem in difflib.get_close_matches(_stem(name), list(stems), n=2, cutoff=0.75):
        close += stems[stem]
    return list(dict.fromkeys(close))[:4]


def _stem(name: str) -> str:
    """An id without namespace and version, in lower case."""
    return re.sub(r"(noframeskip)?(-v\d+)?$", "", name.lower().rpartition("/")[2])
