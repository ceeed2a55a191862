"""A process that does trials of one part of the campaign: it reads their numbers, a line each, and writes outcomes.

`python -m benchmarks.chaos.worker PART SEED FOLDER`
"""

import importlib
import json
import os
import resource
import sys
from pathlib import Path

from benchmarks.chaos.trials import Outcome, Trial, describe_error

PARTS = {
    "kills": ("benchmarks.chaos.kills", "try_kills"),
    "damage": ("benchmarks.chaos.damage", "try_damage"),
    "calls": ("benchmarks.chaos.fuzz", "try_calls"),
    "cluster": ("benchmarks.chaos.cluster", "try_cluster"),
}
"""Where each part of the campaign lies, and what does a trial of it."""

MEMORY_BYTES = 8 * 2**30
"""More than anything here needs: what wants more fails, as it would on a smaller machine."""


def main(words: list[str]) -> None:
    """Do the trials whose numbers are read."""
    part, seed, work = words[0], int(words[1]), Path(words[2])
    # What trials print, and what their native libraries do, goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(work / f"{part}.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    module, name = PARTS[part]
    attempt = getattr(importlib.import_module(module), name)
    for line in sys.stdin:
        try:
            outcome = attempt(Trial(part, int(line), seed, work))
        except Exception as error:
            outcome = Outcome()
            outcome.fail(f"{part}, the campaign itself", "traceback", describe_error(error))
        answers.write(json.dumps(outcome.as_json()) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
