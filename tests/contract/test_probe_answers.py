"""Every preset finds the answers of every probe (see `conftest` for how they are played)."""

import numpy as np
import pytest
from scipy.stats import norm

from qemrl.envs.probes import PROBES, REWARD_MEAN, REWARD_STD

DISCOUNT = 0.8
TOLERANCES = {"dqn": 0.1, "c51": 0.15, "qr-dqn": 0.1, "qem-dqn": 0.1, "iqn": 0.25, "iqem-dqn": 0.25}
"""Implicit quantiles see eight levels in an update, and what they say in between is a matter of the network."""


def errors(learned, probe: str) -> np.ndarray:
    expected = np.array(PROBES[probe].values(DISCOUNT))
    found = learned.q[:, : expected.shape[1]]
    return np.abs(found - expected)[~np.isnan(expected)]


@pytest.mark.parametrize("probe", [name for name in PROBES if name != "7"])
def test_the_compiled_loop_finds_the_values_of_the_probe(system, probe):
    for learned in system.compiled.answers:
        assert errors(learned[probe], probe).max() < TOLERANCES[system.preset], learned[probe].q


@pytest.mark.parametrize("probe", ["5", "6"])
def test_the_host_loop_finds_the_values_of_the_probe(system, probe):
    learned = system.host_run.answers[probe]
    assert errors(learned, probe).max() < TOLERANCES[system.preset], learned.q


def test_the_law_of_a_random_return_is_learned(system):
    """Some 700 normal rewards of standard deviation 2 are seen: their mean is known to 0.08, tail quantiles to 0.2."""
    quantiles = PROBES["7"].quantiles
    assert quantiles is not None
    for answers in system.compiled.answers:
        learned = answers["7"]
        assert abs(learned.q[0, 0] - REWARD_MEAN) < 0.4
        values = learned.dist.values[0, 0, 0]
        if system.preset == "dqn":
            assert values.shape == (1,)
        elif learned.dist.probs is not None:
            cumulative = np.cumsum(learned.dist.probs[0, 0, 0])
            between = values + (values[1] - values[0]) / 2
            np.testing.assert_allclose(cumulative, norm.cdf(between, REWARD_MEAN, REWARD_STD), atol=0.08)
        else:
            np.testing.assert_allclose(values, quantiles(learned.dist.levels), atol=0.9)
            assert np.abs(values - quantiles(learned.dist.levels)).mean() < 0.35


def test_no_number_was_ever_bad(system):
    assert set(system.compiled.bad_steps) == {-1}
