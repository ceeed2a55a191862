"""A run of bootstrapped heads by the command line: trained and gone on with in real processes, and shown."""

import csv
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from qemrl import api
from qemrl.agents.value import ValueConfig
from qemrl.cli.app import main
from qemrl.distributional.bootstrap import Bootstrapped
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.exploration import HeadSampling
from qemrl.training.run_directory import RunDirectory

QEMRL = Path(sys.executable).parent / "qemrl"
TINY = (
    *("--network.widths", "8", "--representation.num-heads", "3", "--representation.head.num-quantiles", "6"),
    *("--representation.mask-probability", "0.5", "--representation.prior-scale", "1", "--estimator", "qem"),
    *("--exploration.evaluate-by", "head", "--learning-starts", "100", "--replay.capacity", "1000"),
    *("--log-every", "300", "--evaluate-every", "300", "--checkpoint-every", "300", "--evaluation-episodes", "2"),
)


def run(*arguments: str, folder: Path) -> str:
    """What a command says that does what it is asked."""
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run([QEMRL, *arguments], capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_heads_with_masks_priors_and_qem_are_trained_shown_and_go_on(tmp_path, capsys):
    train = ("train", "bootstrapped-qr-dqn", "--env", "CartPole-v1", "--steps", "600", "--out", "run")
    assert "step 600 of 600" in run(*train, *TINY, folder=tmp_path)
    agent = api.load(tmp_path / "run")
    assert isinstance(agent.config.agent, ValueConfig)
    assert agent.config.agent.representation == Bootstrapped(FixedQuantiles(6), 3, 0.5, 1.0)
    assert agent.config.agent.exploration == HeadSampling("head")
    records = RunDirectory(tmp_path / "run").read_metrics()
    assert [record["step"] for record in records] == [300, 600]
    assert all(record["dist/member_std"] > 0 and np.isfinite(record["train/loss"]) for record in records)

    main(["show", str(tmp_path / "run"), "--moments", "2"])
    assert "bootstrapped-qr-dqn on CartPole-v1, seed 0: an episode of" in capsys.readouterr().out
    with (tmp_path / "run" / "show" / "distributions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    counts = Counter((row["step"], row["action"]) for row in rows)
    assert set(counts.values()) == {3 * 6}  # quantiles of all heads
    assert len(counts) == 2 * 2

    assert "from step 600 to 900" in run("resume", "run", "--steps", "900", folder=tmp_path)
    assert json.loads((tmp_path / "run" / "DONE").read_text())["step"] == 900
    assert [record["step"] for record in RunDirectory(tmp_path / "run").read_metrics()] == [300, 600, 900]
