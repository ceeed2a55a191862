"""What stands between commands and the terminal: errors in one sentence, exit codes, and readers that go away."""

import contextlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from qemrl.cli.console import UsageError

HAD_TO_STOP, COULD_NOT_BEGIN, INTERRUPTED = 1, 2, 130
"""Exit codes; a run that a signal stopped ends with 128 and the signal's number."""


@contextlib.contextmanager
def guard() -> Iterator[None]:
    """A context that ends the process with a sentence about what went wrong; a defect of ours shows its traceback."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        warnings.simplefilter("default", UserWarning)
        try:
            yield
        except BrokenPipeError:  # `qemrl list | head`: nobody is left to tell
            _discard(sys.stdout)
            sys.exit(HAD_TO_STOP)
        except KeyboardInterrupt:
            _end(INTERRUPTED, "interrupted")
        except Exception as error:
            # An interrupt in the middle of an import comes out of some extension modules as an ImportError.
            if any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error)):
                _end(INTERRUPTED, "interrupted")
            code = find_exit_code(error)
            if code is None:
                raise
            _end(code, describe(error))


def find_exit_code(error: Exception) -> int | None:
    """2 where a command could not begin and the user can mend it, 1 where it had to stop, None for a defect of ours.

    A `ValueError` that this package raises itself says what is wrong with what was asked for, as long as no run has
    begun; one that comes out of another package, or out of the middle of a run, is a defect.
    """
    if isinstance(error, UsageError):
        return COULD_NOT_BEGIN
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    in_run = any(_is_in(frame, "qemrl.training.train") and frame.f_code.co_name == "advance_to_end" for frame in frames)
    if _is_of_environment(frames) or _is_out_of_memory(error):
        return HAD_TO_STOP if in_run else COULD_NOT_BEGIN
    from qemrl.envs.gym.interface import InterfaceError
    from qemrl.export import ExportError
    from qemrl.training.callbacks import CallbackError
    from qemrl.training.checkpoint import CheckpointError
    from qemrl.training.files import RunLockedError, RunWriteError
    from qemrl.training.machine import MemoryShortageError
    from qemrl.training.run_directory import RunExistsError
    from qemrl.training.train import NonFiniteTrainingError

    if isinstance(error, OSError | InterfaceError):
        return HAD_TO_STOP if in_run else COULD_NOT_BEGIN
    if isinstance(error, MemoryShortageError | RunExistsError | RunLockedError):
        return COULD_NOT_BEGIN
    if isinstance(error, CallbackError | CheckpointError | ExportError | NonFiniteTrainingError | RunWriteError):
        return HAD_TO_STOP
    is_message = isinstance(error, ValueError) and not in_run and _is_in(frames[-1], "qemrl")
    return COULD_NOT_BEGIN if is_message else None


def describe(error: Exception) -> str:
    """What to say about an error."""
    places = list(traceback.walk_tb(error.__traceback__))
    if isinstance(error, UsageError):
        return str(error)
    if _is_of_environment([frame for frame, _ in places]):
        frame, line = places[-1]
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return f"the environment raised {what} ({frame.f_code.co_filename}, line {line}); mend it, or choose another"
    if _is_out_of_memory(error):
        return f"there is not enough memory ({error}); make networks, batches or the replay smaller"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)!r}: {error.strerror}; choose another path"
    return str(error)


def _is_of_environment(frames: Sequence[FrameType]) -> bool:
    """Whether an error comes out of code that `envs.gym` called: that of the environment and its module."""
    ours = [place for place, frame in enumerate(frames) if _is_in(frame, "qemrl")]
    return bool(ours) and ours[-1] + 1 < len(frames) and _is_in(frames[ours[-1]], "qemrl.envs.gym")


def _is_in(frame: FrameType, package: str) -> bool:
    return f"{frame.f_globals.get('__name__')}.".startswith(f"{package}.")


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _end(code: int, message: str) -> NoReturn:
    """Say the message, if anybody is there to read it, and end the process."""
    with contextlib.suppress(OSError):
        print(f"qemrl: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def _show_warning(message: Warning | str, *place: Any) -> None:
    del place
    print(f"qemrl: warning: {message}", file=sys.stderr)


class Outlet:
    """A stream that what writes to it outlives: it falls silent when its reader is gone, or its terminal closed."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write the text, or nothing; the number of characters is that of the text."""
        try:
            self.stream.write(text)
        except OSError:
            _discard(self.stream)
        return len(text)

    def flush(self) -> None:
        """Write what waits, or nothing."""
        try:
            self.stream.flush()
        except OSError:
            _discard(self.stream)


@contextlib.contextmanager
def outlive_readers() -> Iterator[None]:
    """A context in which nothing ends because standard output or standard error cannot be written any more."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before, and the next file would take its number
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115 - it stays open
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Outlet(before[0]), Outlet(before[1])
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def _discard(stream: Any) -> None:
    """Let what is written to a stream from now on, or waits to be, go nowhere."""
    with contextlib.suppress(io.UnsupportedOperation):  # it is none of the system's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
