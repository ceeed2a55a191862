"""An evaluation episode as a video; what goes wrong with that is a warning, and never the end of a run."""

import contextlib
import itertools
import os
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from qemrl.envs.gym.host_envs import HostEnvs
from qemrl.extras import how_to_install
from qemrl.training.loops import Evaluator

MAX_FRAMES = 2_000
"""Where a video ends, however long the episode goes on."""

SMALLEST = 160
"""Pixels; smaller pictures are enlarged by whole factors."""

SUFFIXES = (".gif", ".mp4")

Frame = UInt8[np.ndarray, "height width 3"]


class VideoWarning(UserWarning):
    """A video could not be made."""


def require_suffix(path: Path) -> None:
    """Raise unless the file's name ends as a kind of video that can be written.

    Raises:
        ValueError: It does not.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a video is a file that ends in {' or '.join(SUFFIXES)}, got {path}")


def record_episode(evaluator: Evaluator, params: Any, seed: int, step: int, path: Path) -> bool:
    """Whether an evaluation episode was written to a .gif or .mp4 file; if not, a `VideoWarning` says why."""
    require_suffix(path)
    try:
        frames, rate = film(evaluator, params, seed, step)
        write(path, frames, rate)
    except Exception as error:
        # Whatever a renderer or an encoder comes up with, there are results that must not be lost over a film.
        warnings.warn(f"no video was written to {path}: {_reason(error)}", VideoWarning, stacklevel=2)
        return False
    return True


def film(evaluator: Evaluator, params: Any, seed: int, step: int) -> tuple[list[Frame], float]:
    """The pictures of one evaluation episode, and how many of them a second has."""
    frames: list[Frame] = []

    def look(envs: HostEnvs) -> bool:
        frames.append(_enlarge(np.asarray(envs.render(), np.uint8)))
        return len(frames) < MAX_FRAMES

    if "DISPLAY" not in os.environ and "WAYLAND_DISPLAY" not in os.environ:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame would look for a screen, and complain
    envs = evaluator.make_envs(1, render=True)
    try:
        evaluator.play_in(params, seed, step, envs, look)
        rate = envs.vector.metadata.get("render_fps") or 30
    finally:
        envs.close()
    return frames, float(rate)


def write(path: Path, frames: list[Frame], rate: float) -> None:
    """Write a .gif with Pillow, or an .mp4 with FFmpeg; the file is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        (_write_gif if path.suffix.lower() == ".gif" else _write_mp4)(temporary, frames, rate)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_gif(path: Path, frames: list[Frame], rate: float) -> None:
    from PIL import Image

    # A GIF counts in hundredths of a second, and viewers slow down what is faster than two of them.
    hundredths = max(2, round(100 / rate))
    first, *others = (Image.fromarray(frame) for frame in frames)
    first.save(path, format="GIF", save_all=True, append_images=others, duration=10 * hundredths, loop=0)


def _write_mp4(path: Path, frames: list[Frame], rate: float) -> None:
    import imageio_ffmpeg

    height, width, _ = frames[0].shape
    even = ((0, height % 2), (0, width % 2), (0, 0))  # the usual pixel format has colors for pairs of pixels
    size = f"{width + width % 2}x{height + height % 2}"
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(rate), "-i", "-"]
    kind = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-f", "mp4"]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", *raw, *kind, str(path)]
    with tempfile.TemporaryFile() as said:
        encoder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said)
        with encoder, contextlib.suppress(BrokenPipeError):  # it says itself why it closed the pipe
            assert encoder.stdin is not None
            for frame in frames:
                encoder.stdin.write(np.ascontiguousarray(np.pad(frame, even, mode="edge")).data)
            encoder.stdin.close()
        if encoder.returncode:
            said.seek(0)
            raise OSError(f"FFmpeg failed: {said.read().decode(errors='replace').strip()}")


def _enlarge(frame: Frame) -> Frame:
    factor = -(-SMALLEST // min(frame.shape[:2]))
    return frame.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else frame


def _reason(error: Exception) -> str:
    chain = list(itertools.islice(_causes(error), 5))
    if any(isinstance(cause, ImportError) for cause in chain) or "not installed" in str(error):
        return f"a package is missing ({error}); {how_to_install('video')}"
    return f"{type(error).__name__}: {error}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
