"""A campaign that several files look at."""

from pathlib import Path

import pytest
from written_runs import HOSTILE, write_run


@pytest.fixture(scope="session")
def campaign(tmp_path_factory) -> Path:
    """Three algorithms on two tasks with three seeds each: qr-dqn ends at 1 + seed, the others above it.

    One run is not finished, one is damaged, and one is of an algorithm whose name tries to break out of the page.
    """
    folder = tmp_path_factory.mktemp("reports") / "campaign"
    for task, env in enumerate(("probe/1", "probe/2")):
        for place, arm in enumerate(("qr-dqn", "qr-dqn+wide", "iqn")):
            for seed in range(3):
                end = (1 + seed) * (1 + place) * 10**task
                returns = [end / 10, end / 4, end / 2, end]
                write_run(folder / "runs" / f"{arm}_{task}_{seed}", arm, env, seed, returns)
    write_run(folder / "runs" / "late", "qr-dqn", "probe/1", 3, [0.3, 0.9])
    (folder / "runs" / "damaged").mkdir()
    (folder / "runs" / "damaged" / "config.json").write_text("<b>no</b>")
    write_run(folder / "runs" / "hostile", HOSTILE, "probe/1", 0, [1, 2, 3, 4], preset="dqn")
    return folder
