"""A run in Weights & Biases: its configuration, records, evaluations, and an episode as a video at its end."""

import contextlib
import importlib.util
import json
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from qemrl.config.serialize import to_json
from qemrl.extras import require_extra
from qemrl.training.callbacks import Callback, CallbackError, Reason
from qemrl.training.config import RunConfig
from qemrl.training.evaluation import Evaluation
from qemrl.training.files import open_regular, parse_json, write_atomic
from qemrl.training.loops import Evaluator, Loop
from qemrl.training.run_directory import RunDirectory
from qemrl.training.schedule import Record
from qemrl.training.video import VideoWarning, record_episode

FILE = "wandb.json"


class WandbCallback(Callback):
    """A callback that sends a run to Weights & Biases, a W&B run for each seed.

    What is sent says nothing about this machine but its load. In a run directory the ids of the W&B runs are kept, so
    that a run that is resumed goes on in them.
    """

    def __init__(
        self,
        project: str,
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        mode: Literal["online", "offline"] | None = None,
        directory: RunDirectory | None = None,
    ) -> None:
        """A callback for runs of one project.

        Args:
            project: Where the runs go.
            entity: Whose project it is; by default the user's.
            group: What W&B groups the runs by.
            tags: What W&B filters runs by.
            mode: `offline` keeps all on disk, for `wandb sync`; by default as WANDB_MODE says, or else online.
            directory: The run directory, if there is one; `learn` and the commands say which.
        """
        require_extra("wandb", "--wandb")
        if not project:
            raise ValueError("a run is tracked in a project of Weights & Biases, which needs a name; got ''")
        self.project, self.entity, self.group, self.tags = project, entity, group, tuple(tags)
        self.mode: Literal["online", "offline"] | None = mode
        self.directory = directory
        self.evaluator: Evaluator | None = None
        """What plays the episode of the video; one for environments that are made by their id is made if need be."""

        self._runs: dict[int, Any] = {}
        self._loop: Loop | None = None

    @classmethod
    def read(cls, directory: RunDirectory) -> "WandbCallback | None":
        """The callback that a run was tracked with; None if it was not."""
        stored = read_stored(directory)
        if stored is None:
            return None
        options = (stored[name] for name in ("entity", "group", "tags", "mode"))
        return cls(stored["project"], *options, directory=directory)

    def on_start(self, config: RunConfig, loop: Loop, lost: list[str]) -> None:
        """Begin the W&B runs, or go on with them; those that begin later than the run are told what was before."""
        del lost
        self._loop, self.evaluator = loop, self.evaluator or Evaluator(config, loop.agent)
        known = self._known_ids()
        for seed in config.seeds:
            self._runs[seed] = self._begin(config, seed, known.get(str(seed)))
        if self.directory is None:
            return
        ids = {str(seed): run.id for seed, run in self._runs.items()}
        options = {"project": self.project, "entity": self.entity, "group": self.group, "tags": list(self.tags)}
        stored = {**options, "mode": self.mode, "runs": ids}
        write_atomic(self.directory.path / FILE, json.dumps(stored, indent=2) + "\n")
        for record in self.directory.read_metrics():
            if str(record["seed"]) not in known:
                self.on_record(record["step"], record)

    def on_record(self, step: int, metrics: Record) -> None:
        numbers = {tag: value for tag, value in metrics.items() if "/" in tag and isinstance(value, int | float)}
        self._runs[metrics["seed"]].log(numbers, step=step)

    def on_evaluation(self, step: int, result: Evaluation) -> None:
        """Send the returns and lengths of the episodes as histograms; their means are in the record."""
        import wandb

        both = {"eval/returns": result.returns, "eval/lengths": result.lengths}
        self._runs[result.seed].log({tag: wandb.Histogram(each.tolist()) for tag, each in both.items()}, step=step)

    def on_end(self, reason: Reason) -> None:
        """End the W&B runs, with a video of each seed where the environment can be filmed."""
        is_well = reason in ("finished", "callback")
        with contextlib.ExitStack() as stack:
            for run in self._runs.values():
                stack.callback(run.finish, exit_code=0 if is_well else 1)
            if is_well:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                for index, seed in enumerate(self._runs):
                    self._send_video(index, seed, folder)
        self._runs = {}

    def _begin(self, config: RunConfig, seed: int, known: str | None) -> Any:
        import wandb

        inside = self.directory is not None and "WANDB_DIR" not in os.environ
        # Not what W&B would find out by itself: the machine, folders, the commit of whatever is around.
        private = wandb.Settings(
            silent=True, console="off", host="", disable_code=True, disable_git=True, x_disable_meta=True
        )
        try:
            run = wandb.init(
                project=self.project,
                entity=self.entity,
                group=self.group,
                tags=self.tags,
                mode=self.mode,
                name=f"{config.preset} {config.env_name} seed {seed}",
                config=to_json(config) | {"seed": seed, "num_seeds": 1},
                id=known,
                resume="allow",
                reinit="create_new",
                dir=self.directory.path if self.directory is not None and inside else None,
                settings=private,
            )
        except wandb.Error as error:
            raise CallbackError(
                f"Weights & Biases: {str(error).rstrip('.')}; log in with `wandb login`, or keep the run on disk with "
                "--wandb-offline (in Python: mode='offline')"
            ) from error
        if not run.offline:
            print(f"Weights & Biases: {run.url}", flush=True)
        return run

    def _known_ids(self) -> dict[str, str]:
        """The W&B runs of this run, by seed, if it was tracked in the same project."""
        stored = None if self.directory is None else read_stored(self.directory)
        if stored is None or (stored["project"], stored["entity"]) != (self.project, self.entity):
            return {}
        return stored["runs"]

    def _send_video(self, index: int, seed: int, folder: Path) -> None:
        import wandb

        assert self._loop is not None
        assert self.evaluator is not None
        # Without FFmpeg there is still Pillow.
        kind = "gif" if importlib.util.find_spec("imageio_ffmpeg") is None else "mp4"
        path = folder / f"seed_{seed}.{kind}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VideoWarning)  # many environments cannot be filmed
            filmed = record_episode(self.evaluator, self._loop.params(index), seed, self._loop.step, path)
        if filmed:
            self._runs[seed].log({"video": wandb.Video(str(path))}, step=self._loop.step)


def read_stored(directory: RunDirectory) -> dict[str, Any] | None:
    """How a run is tracked; None if it is not.

    Raises:
        ValueError: The file is damaged.
    """
    file = directory.path / FILE
    try:
        with open_regular(file) as stream:
            stored = parse_json(stream.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}; remove it, to go on without tracking") from error
    match stored:
        case {"project": str(), "entity": entity, "group": group, "tags": list(tags), "mode": mode, "runs": dict(runs)}:
            texts = [each for each in (entity, group, mode) if each is not None]
            if all(isinstance(each, str) for each in (*texts, *tags, *runs.values())):
                return stored
    raise ValueError(f"{file} is damaged: it names no project and runs; remove it, to go on without tracking")
