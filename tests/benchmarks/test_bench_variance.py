"""The bench of estimated V: what is compared, and that it learns and looks while it is timed."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.iterations import SPECS
from benchmarks.variance import CASES, MODELS, Case, configurations, make_iterations
from qemrl.agents.q_estimator import MOMENTS_EVERY
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import QEM


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.task} {case.preset} {case.heads}")
def test_agents_differ_in_v_alone(case: Case):
    fixed, *others = configurations(case).values()
    assert isinstance(fixed.estimator, QEM)
    assert not fixed.estimator.needs
    for name, other in zip(case.models, others, strict=True):
        assert isinstance(other.estimator, QEM)
        assert other.estimator.variance == MODELS[name]
        assert replace(other, estimator=fixed.estimator) == fixed


def test_every_model_is_timed():
    assert {name for case in CASES for name in case.models} == set(MODELS)


def test_a_look_is_among_the_iterations_that_are_timed():
    config = configurations(Case("classic", "cartpole", "qem-dqn", ("TD residuals",)))["TD residuals"]
    assert isinstance(config, ValueConfig)
    config = replace(config, representation=FixedQuantiles(8), network=NetworkConfig(widths=(8,)), batch_size=8)
    for count in (1, MOMENTS_EVERY):
        (params, _), (actions, losses) = make_iterations(config, SPECS["cartpole"], count)()
        assert actions.shape == (count, config.update_every, 1)
        assert np.isfinite(losses).all()
        assert (np.asarray(params.estimator.curvature) != 1).any() == (count == MOMENTS_EVERY)
