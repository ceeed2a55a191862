"""What V is estimated from goes through both loops and their checkpoints, and probes are still answered."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from mixed_probes import mixed_probes
from small_loops import compiled_loop, host_loop, tiny

from qemrl.agents.target_networks import Snapshots
from qemrl.agents.value import ValueConfig
from qemrl.envs.gym.jax_adapter import JaxEnvAdapter
from qemrl.estimators import QEM, CountedVariance, ResidualVariance, SparsityVariance

BASE = tiny("qem-dqn")
assert isinstance(BASE, ValueConfig)
CONFIGS: dict[str, Any] = {
    "counts": replace(BASE, estimator=QEM(2, CountedVariance())),
    "EMA network": replace(BASE, estimator=QEM(2, SparsityVariance())),
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
    arrays = {place: np.array(array) for place, array in loop.arrays().items()}
    variance_state = [place for place in arrays if ".estimator" in place]
    assert bool(variance_state) == (name != "snapshots")
    loop.advance(800, False)
    expected = {place: np.array(array) for place, array in loop.arrays().items()}
    assert any((arrays[place] != expected[place]).any() for place in variance_state or arrays)
    loop.restore(400, arrays)
    loop.advance(800, False)
    for place, array in loop.arrays().items():
        np.testing.assert_array_equal(array, expected[place], err_msg=place)


@pytest.mark.parametrize("name", ["counts", "snapshots"])
def test_the_host_loop_goes_on_from_a_checkpoint_bit_for_bit(name: str):
    loop = host_loop(CONFIGS[name], partial(JaxEnvAdapter, mixed_probes(probes_for(name))), 2, 0)
    loop.advance(400, False, lambda: False)
    arrays = {place: np.array(array) for place, array in loop.arrays().items()}
    loop.advance(600, False, lambda: False)
    expected = {place: np.array(array) for place, array in loop.arrays().items()}
    assert loop.restore(arrays) == []
    loop.advance(600, False, lambda: False)
    for place, array in loop.arrays().items():
        np.testing.assert_array_equal(array, expected[place], err_msg=place)
