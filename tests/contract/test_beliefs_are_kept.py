"""What V is estimated from goes through both loops and their checkpoints, and probes are still answered."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from mixed_probes import mixed_probes
from small_loops import compiled_loop, host_loop, tiny

from qemrl.agents.averaging import Snapshots
from qemrl.agents.value import ValueConfig
from qemrl.envs.hosted import hosted
from qemrl.estimators import QEM, CountedVariance, ResidualVariance, SparsityVariance

BASE = tiny("qem-dqn")
assert isinstance(BASE, ValueConfig)
CONFIGS: dict[str, Any] = {
    "counts": replace(BASE, estimator=QEM(2, CountedVariance())),
    "slow copy": replace(BASE, estimator=QEM(2, SparsityVariance())),
    "residuals": replace(BASE, estimator=QEM(2, ResidualVariance())),
    "snapshots": replace(BASE, averaging=Snapshots(2)),
    "critics": replace(tiny("qem-dsac-mlp"), estimator=QEM(2, ResidualVariance(full=True))),
}


def probes_for(name: str) -> tuple[str, ...]:
    return ("c5", "c6") if name == "critics" else ("5", "6")


@pytest.mark.parametrize("name", CONFIGS)
def test_the_compiled_loop_goes_on_from_a_checkpoint_bit_for_bit(name: str):
    loop = compiled_loop(CONFIGS[name], mixed_probes(probes_for(name)), 2, (0, 1), 2)
    loop.advance(400, False)
    taken = {place: np.array(array) for place, array in loop.arrays().items()}
    beliefs = [place for place in taken if "beliefs" in place]
    assert bool(beliefs) == (name != "snapshots")
    loop.advance(800, False)
    expected = {place: np.array(array) for place, array in loop.arrays().items()}
    assert any((taken[place] != expected[place]).any() for place in beliefs or taken)
    loop.restore(400, taken)
    loop.advance(800, False)
    for place, array in loop.arrays().items():
        np.testing.assert_array_equal(array, expected[place], err_msg=place)


@pytest.mark.parametrize("name", ["counts", "snapshots"])
def test_the_host_loop_goes_on_from_a_checkpoint_bit_for_bit(name: str):
    loop = host_loop(CONFIGS[name], partial(hosted, mixed_probes(probes_for(name))), 2, 0)
    loop.advance(400, False, lambda: False)
    taken = {place: np.array(array) for place, array in loop.arrays().items()}
    loop.advance(600, False, lambda: False)
    expected = {place: np.array(array) for place, array in loop.arrays().items()}
    assert loop.restore(taken) == []
    loop.advance(600, False, lambda: False)
    for place, array in loop.arrays().items():
        np.testing.assert_array_equal(array, expected[place], err_msg=place)
