"""Which trackers a run has: those that are asked for, and those that it had before."""

from qemrl.training.callbacks import Callback
from qemrl.training.loops import Evaluator
from qemrl.training.run_directory import RunDirectory
from qemrl.training.tensorboard import FOLDER, TensorBoardCallback
from qemrl.training.wandb import WandbCallback


def make_trackers(
    directory: RunDirectory | None,
    tensorboard: bool = False,
    wandb: WandbCallback | None = None,
    evaluator: Evaluator | None = None,
) -> list[Callback]:
    """The callbacks of TensorBoard and Weights & Biases for a run.

    Args:
        directory: The folder of the run, which says what it had before; event files are written there.
        tensorboard: Whether TensorBoard is asked for.
        wandb: Weights & Biases, if it is asked for.
        evaluator: What plays episodes for videos, where the environment cannot be made by its id.

    Raises:
        ValueError: A package is missing, or there is no folder for event files.
    """
    found: list[Callback] = []
    if tensorboard and directory is None:
        raise ValueError("event files for TensorBoard go into the folder of a run; name one with out=")
    if directory is not None:
        if tensorboard or (directory.path / FOLDER).exists():
            found.append(TensorBoardCallback(directory))
        if wandb is None:
            wandb = WandbCallback.read(directory)
        elif wandb.directory is None:
            wandb.directory = directory
    if wandb is not None:
        wandb.evaluator = evaluator
        found.append(wandb)
    return found
