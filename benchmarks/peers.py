"""Virtual environments in which others' libraries run, so that they can be timed beside ours."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

SB3 = (
    ("torch==2.13.0",),
    (
        "sb3-contrib==2.9.2",
        "stable-baselines3==2.9.2",
        "gymnasium==1.4.0",
        "ale-py==0.12.1",
        "minatar==1.0.15",
        "opencv-python-headless==5.0.0.93",
        "numpy==2.4.6",
    ),
)
"""Stable-Baselines3 and what it is timed on, in the order of installation: with torch there first, nothing else brings
one of its own."""

SBX = (
    ("torch==2.13.0",),
    (
        "sb3-contrib==2.9.2",
        "stable-baselines3==2.9.2",
        "sbx-rl==0.28.0",
        "jax==0.10.2",
        "jaxlib==0.10.2",
        "flax==0.12.8",
        "optax==0.2.8",
        "tfp-nightly==0.26.0.dev20261027",
        "gymnasium[mujoco]==1.4.0",
        "mujoco==4.0.0",
        "numpy==2.4.6",
    ),
)
"""Stable-Baselines3 and its sibling in JAX, with the same JAX and MuJoCo as ours."""

TIANSHOU = (("torch==2.13.0",), ("tianshou==2.0.1", "gymnasium==1.4.0", "numpy==2.4.6"))
"""Tianshou, whose pins are not ours."""

TIANSHOU_TESTS = (*TIANSHOU, ("pytest==9.2.0", "scipy==1.17.1", "array-api-compat==1.16.0", "jaxtyping==0.3.11"))
"""The same with what `qemrl.integrations.tianshou` and its tests need."""

MINATAR = (("--no-deps", "minatar==1.0.15"),)
"""MinAtar in NumPy, for our own side: what it asks for beside NumPy is for drawing."""

MARKER = "installed.json"
"""The file that says what a finished environment holds."""


class PeerError(Exception):
    """A peer's environment could not be made, or did not do what it was asked; the message says what to do."""


def default_folder() -> Path:
    """Where peers live unless told otherwise: a folder of the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "qemrl" / "peers"


def make_peer(name: str, packages: Sequence[Sequence[str]], folder: Path) -> Path:
    """The interpreter of a virtual environment with these packages, which is made unless it is there already.

    Args:
        name: The environment's folder inside of `folder`.
        packages: What to install, as pip takes it; each group in a call of its own, one after the other.
        folder: Where environments are kept.

    Raises:
        PeerError: It could not be made.
    """
    place = (folder / name).absolute()
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def install() -> None:
        _run([sys.executable, "-m", "venv", str(place)], place)
        for group in packages:
            _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", *group], place)

    _make_once(place, packages, install)
    return python


def add_packages(name: str, packages: Sequence[Sequence[str]], folder: Path) -> Path:
    """A folder with these packages, for the path of our own interpreter; it is made unless it is there already.

    Raises:
        PeerError: It could not be made.
    """
    place = (folder / f"{name}-packages").absolute()

    def install() -> None:
        for group in packages:
            target = ["--disable-pip-version-check", "--target", str(place)]
            _run([sys.executable, "-m", "pip", "install", *target, *group], place)

    _make_once(place, packages, install)
    return place


def _make_once(place: Path, packages: Sequence[Sequence[str]], install: Callable[[], None]) -> None:
    wanted = {"python": sys.version, "packages": [list(group) for group in packages]}
    if _installed(place) == wanted:
        return
    shutil.rmtree(place, ignore_errors=True)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{place.parent} cannot hold virtual environments ({error}); choose another --peers-folder"
        raise PeerError(message) from error
    install()
    # Written last: an environment that was left half made has none, and is made again.
    (place / MARKER).write_text(json.dumps(wanted), encoding="utf-8")


def test_integrations(folder: Path) -> int:
    """Run tests/peers in the environments of the peers, whose pins are not ours; gives pytest's exit code."""
    root = Path(__file__).parents[1]
    python = make_peer("tianshou-tests", TIANSHOU_TESTS, folder)
    # Without our configuration, which is for the packages that tests of our own have.
    options = [
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "--no-header",
        "-c",
        os.devnull,
        "--rootdir",
        str(root),
        str(root / "tests/peers"),
    ]
    variables = {**os.environ, "PYTHONPATH": str(root / "src")}
    return subprocess.run([str(python), "-m", "pytest", "-v", *options], check=False, env=variables).returncode


def last_lines(text: str, count: int = 6) -> str:
    """The last lines that say something, which is where programs say why they failed."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])


def _installed(place: Path) -> object:
    try:
        return json.loads((place / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _run(command: list[str], place: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(
            f"the virtual environment {place} could not be made: `{' '.join(command[1:])}` failed with\n"
            f"{last_lines(done.stdout + done.stderr)}\n"
            "Can pip install packages here, and are 2 GB of disk free? Another place is chosen with --peers-folder"
        )


if __name__ == "__main__":
    sys.exit(test_integrations(default_folder()))
