"""Every preset finds the answers of every probe of its kind (see `conftest` for how they are played)."""

import numpy as np
from mixed_probes import ALL, box_of, common_box, moved

from qemrl.envs.jax.probes import REWARD_MEAN

DISCOUNT = 0.8
TOLERANCES = {"c51": 0.15, "iqn": 0.25, "iqem-dqn": 0.25, "fqf": 0.25, "ndqfn": 0.2}
"""Of values, where it is not 0.1, or 0.15 with continuous actions, whose critics have to learn a whole line of them.

Implicit quantiles see eight levels in an update, and what they say in between is a matter of the network.
"""

LATE = {("ndqfn", "6"): 1.0, ("mmd-dqn", "8"): 0.4}
"""Tolerances of single probes.

The lowest level of NDQFN, which carries all others, climbs to a return of 5 by small steps; particles that are far from
their targets are pulled little.
"""

DISTANCES = {"nc-qr-dqn": 0.7, "ndqfn": 0.6, "spl-dqn": 0.5}
"""Wasserstein distances from a law of standard deviation 2, where 0.4 is not reached: shared parts are learned late."""


def error(learned, probe: str) -> float:
    """How far Q is from the answer at worst."""
    expected = np.array(ALL[probe].values(DISCOUNT))
    found = learned.q[:, : expected.shape[1]]
    return np.abs(found - expected)[~np.isnan(expected)].max()


def require_values(system, answers):
    """The values of all probes are found, but for that of the random return, which has a test of its own."""
    tolerance = TOLERANCES.get(system.preset, 0.1 if system.spec.box is None else 0.15)
    worst = {probe: error(learned, probe) for probe, learned in answers.items() if ALL[probe].quantiles is None}
    assert len(worst) > 1
    allowed = {probe: LATE.get((system.preset, probe), tolerance) for probe in worst}
    assert {probe: each for probe, each in worst.items() if not each < allowed[probe]} == {}


def require_best_actions(answers):
    """Where a best action is known, the chosen one is near. The middle of the box is a quarter of it away from all."""
    missed, boxed = {}, common_box(tuple(answers))
    for probe, learned in answers.items():
        description, own = ALL[probe], box_of(probe)
        if boxed is None or own is None or description.best_actions is None:
            continue
        miss = np.abs(moved(learned.actions[:, 0], boxed, own) - np.array(description.best_actions))
        missed[probe] = miss.max() / (own.high[0] - own.low[0])
    assert bool(missed) == (boxed is not None)
    assert {probe: each for probe, each in missed.items() if not each < 0.15} == {}


def test_the_compiled_loop_finds_the_values_and_the_best_actions_of_all_probes(system):
    for answers in system.compiled.answers:
        require_values(system, answers)
        require_best_actions(answers)


def test_the_host_loop_finds_the_values_and_the_best_actions_of_some_probes(system):
    require_values(system, system.host_run.answers)
    require_best_actions(system.host_run.answers)


def test_the_distribution_of_a_random_return_is_learned(system):
    """Some 700 normal rewards of standard deviation 2 are seen: their mean is known to 0.08, tail quantiles to 0.2."""
    (probe,) = (name for name in system.probes if ALL[name].quantiles is not None)
    for answers in system.compiled.answers:
        learned = answers[probe]
        assert abs(learned.q[0, 0] - REWARD_MEAN) < 0.4
        shares = learned.dist.probs
        for member, values in enumerate(learned.dist.values[0, :, 0]):
            if system.config.representation.content == "mean" or values.shape == (1,):
                continue
            probs = np.full(values.shape, 1 / values.size)
            if shares is not None:
                probs = np.broadcast_to(shares, learned.dist.values.shape)[0, member, 0]
            assert distance(values, probs, ALL[probe].quantiles) < DISTANCES.get(system.preset, 0.4)


def distance(values, probs, quantiles) -> float:
    """The Wasserstein distance between a distribution on atoms and one that is given by its quantiles."""
    order, points = np.argsort(values), (np.arange(5_000) + 0.5) / 5_000
    places = np.searchsorted(np.cumsum(probs[order]), points)
    return np.abs(values[order][np.minimum(places, values.size - 1)] - quantiles(points)).mean()


def test_no_number_was_ever_bad(system):
    assert set(system.compiled.bad_steps) == {-1}
