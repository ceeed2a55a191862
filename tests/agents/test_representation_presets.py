"""Presets of the cited systems: the settings that their papers name, their parents, and settings that are refused."""

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from qemrl.agents.actor_critic_config import ActorCriticConfig
from qemrl.agents.actor_critic_presets import ACTOR_CRITIC_PRESETS
from qemrl.agents.names import MUJOCO_TASKS, SUMMARIES
from qemrl.agents.optimizer import AdamConfig
from qemrl.agents.presets import PRESETS
from qemrl.agents.target_networks import EMA, Snapshots
from qemrl.agents.value import ValueConfig
from qemrl.agents.value_presets import VALUE_PRESETS
from qemrl.cli.runs import NOT_SETTINGS, read_options
from qemrl.config.registry import AXES
from qemrl.distributional.atoms import Categorical, GaussianHistogram, Scalar
from qemrl.distributional.bootstrap import Bootstrapped
from qemrl.distributional.expectiles import Expectiles
from qemrl.distributional.fractions import ProposedFractions
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.distributional.monotone import NonCrossingQuantiles, NonDecreasingQuantiles, SplineQuantiles
from qemrl.distributional.particles import Particles
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import QEM, EmpiricalMean, ResidualVariance, SparsityVariance
from qemrl.exploration import HeadSampling
from qemrl.training.config import configure

FAMILIES = ("atari", "minatar", "classic")
PARENTS = {
    "fqf": "iqn",
    "fqf-uniform": "iqn",
    "ndqfn": "iqn",
    "nc-qr-dqn": "qr-dqn",
    "spl-dqn": "qr-dqn",
    "er-dqn": "qr-dqn",
    "er-dqn-naive": "qr-dqn",
    "mmd-dqn": "qr-dqn",
    "cr-dqn": "qr-dqn",
    "hl-gauss": "c51",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_presets_of_a_representation_differ_from_their_parents_in_it_alone(family):
    for child, parent in PARENTS.items():
        one, other = VALUE_PRESETS[child](family), VALUE_PRESETS[parent](family)
        assert one.representation != other.representation
        assert replace(one, representation=other.representation) == other
        assert one.estimator == EmpiricalMean()
    soft = VALUE_PRESETS["m-iqn"](family)
    assert soft.munchausen
    assert (soft.munchausen_weight, soft.munchausen_temperature, soft.munchausen_floor) == (0.9, 0.03, -1.0)
    assert replace(soft, munchausen=False) == VALUE_PRESETS["iqn"](family)
    for child, parent in (("bootstrapped-dqn", "dqn"), ("bootstrapped-qr-dqn", "qr-dqn")):
        one, other = VALUE_PRESETS[child](family), VALUE_PRESETS[parent](family)
        assert (one.double, one.exploration) == (True, HeadSampling())
        assert one.representation == Bootstrapped(other.representation, 10, 1.0, 0.0)
        same = replace(one, representation=other.representation, exploration=other.exploration, double=False)
        assert same == other


def test_the_atari_settings_are_those_of_the_papers():
    """32 fractions at RMSProp's 2.5e-9, 64 cosines, 200 quantiles or particles, bandwidths 1 to 10, 11 expectiles."""
    papers = {
        "fqf": ProposedFractions(32, 64, "relu", False, 1.0, (), 2.5e-9, "wasserstein", 0.0, False),
        "fqf-uniform": ImplicitQuantiles(32, 32, 32, "midpoints", "midpoints", 64, kappa=1.0),
        "nc-qr-dqn": NonCrossingQuantiles(200, 1.0, scale="softplus"),
        "ndqfn": NonDecreasingQuantiles(32, 64, 64, 64, "relu", 1.0),
        "spl-dqn": SplineQuantiles(200, 1.0, num_bins=16, mean="grid"),
        "er-dqn": Expectiles(11, imputation=True),
        "er-dqn-naive": Expectiles(11, imputation=False),
        "mmd-dqn": Particles(200, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)),
        "cr-dqn": FixedQuantiles(200, 0.0, loss_function="cramer"),
        "hl-gauss": GaussianHistogram(51, -10.0, 10.0, 0.75),
        "bootstrapped-dqn": Bootstrapped(Scalar(), 10),
        "bootstrapped-qr-dqn": Bootstrapped(FixedQuantiles(200), 10),
    }
    for preset, representation in papers.items():
        config = VALUE_PRESETS[preset]("atari")
        assert config.representation == representation
        if preset not in ("hl-gauss", "bootstrapped-dqn"):
            assert (config.optimizer.learning_rate, config.optimizer.epsilon) == (5e-5, 0.01 / 32)
    assert {name for name in VALUE_PRESETS if name not in ("m-iqn", *papers)} == {
        *("dqn", "c51", "qr-dqn", "qem-dqn", "iqn", "iqem-dqn", "qr-dqn-dltv", "qem-dqn-dltv", "qem-dqn-var")
    }


@pytest.mark.parametrize("family", MUJOCO_TASKS)
def test_dsac_fqf_is_dsac_with_proposed_fractions(family):
    """Two layers of 128, a rate of 1e-5, and targets that count by their intervals."""
    config, other = (ACTOR_CRITIC_PRESETS[name](family) for name in ("dsac-fqf", "dsac"))
    assert config.representation == ProposedFractions(
        32, 64, "sigmoid", True, 1.0, (128, 128), 1e-5, "wasserstein", 0.0, True
    )
    assert replace(config, representation=other.representation) == other


def test_revisiting_rainbow_gives_new_presets_the_rate_of_what_they_hold():
    for preset, rate in (("bootstrapped-dqn", 2.5e-4), ("bootstrapped-qr-dqn", 1e-4), ("mmd-dqn", 1e-4)):
        config = configure(preset, "minatar/breakout", 1000, overrides={"settings": "revisiting-rainbow"}).agent
        assert config.optimizer == AdamConfig(rate, 0.01 / 32)


def test_every_representation_has_a_name_and_a_preset():
    used = {type(PRESETS[name].configure("atari").representation) for name in SUMMARIES}
    assert {type(part) for part in AXES["representation"].parts.values()} == used


BAD = [
    (lambda: ProposedFractions(1), "num_fractions must be at least 2, got 1"),
    (lambda: ProposedFractions(num_cosines=0), "num_cosines must be at least 1, got 0"),
    (lambda: ProposedFractions(kappa=-1.0), "kappa must be finite and not negative, got -1.0"),
    (lambda: ProposedFractions(fraction_rate=-1e-9), "fraction_rate must be finite and not negative, got -1e-09"),
    (lambda: ProposedFractions(entropy=float("inf")), "entropy must be finite and not negative, got inf"),
    (lambda: ProposedFractions(fraction_widths=(8, 0)), "fraction_widths must be at least 1 each, got (8, 0)"),
    (lambda: NonCrossingQuantiles(0), "num_quantiles must be at least 1, got 0"),
    (lambda: SplineQuantiles(num_bins=0), "num_bins must be at least 2, got 0"),
    (lambda: SplineQuantiles(num_bins=1), "num_bins must be at least 2, got 1"),
    (lambda: NonDecreasingQuantiles(1), "num_levels must be at least 2, got 1"),
    (lambda: NonDecreasingQuantiles(num_loss_levels=0), "num_loss_levels must be at least 1, got 0"),
    (lambda: NonDecreasingQuantiles(num_target_levels=0), "num_target_levels must be at least 1, got 0"),
    (lambda: Expectiles(10), "the number of expectiles must be odd and at least 5, got 10"),
    (lambda: Expectiles(3), "the number of expectiles must be odd and at least 5, got 3"),
    (lambda: Particles(0), "num_particles must be at least 1, got 0"),
    (lambda: Particles(bandwidths=()), "bandwidths must be at least one positive number, such as 1 2 4; got none"),
    (lambda: Particles(bandwidths=(1.0, 0.0)), "bandwidths must be finite and positive, got 0.0"),
    (lambda: Particles(bandwidths=(-2.0,)), "bandwidths must be finite and positive, got -2.0"),
    (lambda: Particles(bandwidths=(float("nan"),)), "bandwidths must be finite and positive, got nan"),
    (lambda: GaussianHistogram(width=0.0), "width must be finite and positive, got 0.0"),
    (lambda: FixedQuantiles(8, 1.0, loss_function="cramer"), "the Cramér distance has no kappa: set kappa=0"),
    (lambda: Bootstrapped(num_heads=1), "num_heads must be at least 2, got 1"),
    (lambda: Bootstrapped(num_heads=101), "num_heads must be at most 100, got 101"),
    (lambda: Bootstrapped(mask_probability=0.0), "mask_probability must be above 0 and at most 1, got 0.0"),
    (lambda: Bootstrapped(mask_probability=1.5), "mask_probability must be above 0 and at most 1, got 1.5"),
    (lambda: Bootstrapped(prior_scale=-1.0), "prior_scale must be finite and not negative, got -1.0"),
    (lambda: Bootstrapped(Bootstrapped()), "cannot be several itself, as this Bootstrapped is"),
    (lambda: Bootstrapped(FixedQuantiles(8, num_heads=2)), "cannot be several itself, as this FixedQuantiles is"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "said"), BAD, ids=[said for _, said in BAD])
def test_settings_of_representations_that_make_no_sense_are_refused(make, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        make()


TOGETHER = [
    ({"representation": ProposedFractions(), "averaging": Snapshots(2)}, "two networks of ProposedFractions have"),
    ({"representation": Particles(), "averaging": Snapshots(2)}, "use Online() with it"),
    ({"representation": ProposedFractions(), "estimator": QEM(4, SparsityVariance())}, "and a V that needs no EMA"),
    ({"representation": Bootstrapped(Particles(8), 2), "averaging": Snapshots(2)}, "levels of their own"),
    ({"representation": Categorical(), "estimator": QEM(4, ResidualVariance())}, "by which Categorical does not learn"),
    ({"representation": Expectiles(), "estimator": QEM(4, ResidualVariance())}, "by which Expectiles does not learn"),
    ({"representation": Particles(), "estimator": QEM(4, ResidualVariance())}, "by which Particles does not learn"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "said"), TOGETHER, ids=[said for _, said in TOGETHER])
def test_what_does_not_go_together_is_refused(settings, said):
    ValueConfig(settings["representation"], averaging=EMA())  # an EMA network alone acts at its own levels
    with pytest.raises(ValueError, match=re.escape(said)):
        ValueConfig(**settings)


@pytest.mark.parametrize(
    ("representation", "said"),
    [
        (
            Categorical(),
            "critics are joined level by level, and Categorical has no quantiles; use quantiles, or Scalar",
        ),
        (GaussianHistogram(), "GaussianHistogram has no quantiles"),
        (Expectiles(), "Expectiles has no quantiles"),
        (Particles(), "Particles has no quantiles"),
        (SplineQuantiles(mean="exact"), "SplineQuantiles with mean='exact' has no quantiles"),
        (Bootstrapped(), "critics are an ensemble already, which learns from every transition: use what a head holds"),
    ],
    ids=str,
)
def test_what_critics_cannot_be_joined_by_is_refused(representation, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        ActorCriticConfig(representation=representation)


@pytest.mark.parametrize(
    ("preset", "words", "said"),
    [
        ("fqf", "--representation.fraction-loss squarred", "did you mean 'squared'?"),
        ("nc-qr-dqn", "--representation.scale reluu", "did you mean 'relu'?"),
        ("ndqfn", "--representation.increment soft", "representation.increment: 'soft' is none of the choices"),
        ("spl-dqn", "--representation.mean exactly", "did you mean 'exact'?"),
        ("cr-dqn", "--representation.loss-function kramer", "did you mean 'cramer'?"),
        ("bootstrapped-dqn", "--exploration.evaluate-by votes", "did you mean 'vote'?"),
        (
            "qr-dqn",
            "--exploration head-sampling",
            "HeadSampling draws one of several heads, and FixedQuantiles has one",
        ),
        ("qr-dqn", "--representation particle", "there is no representation 'particle'; did you mean 'particles'?"),
        ("mmd-dqn", "--representation.bandwidths 1 two", "representation.bandwidths[1]: expects float, got 'two'"),
        ("iqn", "--munchausen-weight 0.5", "switch them on with munchausen=True (--munchausen)"),
    ],
)
def test_unknown_words_are_refused_with_what_may_have_been_meant(preset: str, words: str, said: str):
    with pytest.raises(ValueError, match=re.escape(said)):
        from_words(preset, words)


def from_words(preset: str, words: str) -> Any:
    return configure(preset, "CartPole-v1", 1000, overrides=read_options(shlex.split(words), NOT_SETTINGS)).agent


def test_words_set_what_the_new_parts_have():
    fqf = from_words("fqf", "--representation.fraction-rate 1e-4 --representation.fraction-widths 8 8").representation
    assert (fqf.fraction_rate, fqf.fraction_widths) == (1e-4, (8, 8))
    assert from_words("mmd-dqn", "--representation.bandwidths 1 4").representation == Particles(51, (1.0, 4.0))
    words = "--representation.mask-probability 0.5 --representation.head.num-quantiles 9 --representation.prior-scale 2"
    heads = from_words("bootstrapped-qr-dqn", words).representation
    assert heads == Bootstrapped(FixedQuantiles(9), 10, 0.5, 2.0)
    assert from_words("iqn", "--munchausen") == VALUE_PRESETS["m-iqn"]("classic")
