"""The claims about representations, with the rules that decide them."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float

from qemrl.experiments.statistics import Interval, jackknife_interval, mean_interval
from qemrl.paper.claims import Claim, check_claim, count_share, judge
from qemrl.paper.items import representations_exact as exact
from qemrl.paper.items.representations_game import Played
from qemrl.paper.items.representations_learned import Learned, make_world, quantile_errors, rms_bias

MONOTONE = ("nc-qr-dqn", "ndqfn", "spl-dqn")
"""Whose quantiles cannot cross."""

CROSSES, NEVER, WIDE, UNBIASED, COSTLY, IGNORED, TYPICAL = 0.01, 1e-3, 1.05, 1e-3, 1.5, -0.1, 0.5
"""The rules: a share of neighbors in the wrong order that is too large, and one that is none; a variance that is
overestimated; a bias of the mean in standard deviations that is one; how many times as long an update may take; a bias
of Q in standard deviations by truncation; and a share of processes or distributions that is typical."""

EXACT = 1e-6
"""Squared errors of Q below this share of the variance are none, and are not compared."""


COSTS = Path(__file__).with_name("measured_costs.json")
"""How many times as long an update takes as that of the preset it comes from: figures of `make bench`."""

Histories = dict[tuple[str, str], list[Learned]]
"""By world and preset."""


def check_crossings(histories: Histories, games: dict[str, list[Played]]) -> Iterator[Claim]:
    """Whether quantiles cross, where they can and where they cannot."""
    rates = {(world, preset): records[-1].crossing for (world, preset), records in histories.items()}
    rates |= {("MinAtar", preset): np.array([each.crossing for each in played]) for preset, played in games.items()}
    for (task, preset), rate in rates.items():
        if rate is None or preset not in ("qr-dqn", "iqn"):
            continue
        yield check_claim(
            f"{preset} crosses on {task}",
            "Section 1",
            f"quantiles learned by {preset} on {task} cross",
            f"in the end more than {CROSSES:.0%} of neighboring quantiles are in the wrong order",
            mean_interval(rate),
            "share of neighbors in the wrong order, mean over seeds",
            above=CROSSES,
        )
    for name in MONOTONE:
        mine = [rate for (_, preset), rate in rates.items() if preset == name and rate is not None]
        if mine:
            yield check_claim(
                f"{name} never crosses",
                "Section 1",
                f"the form of {name} keeps its quantiles from crossing",
                f"less than {NEVER:.1%} of neighbors are in the wrong order, over all tasks",
                mean_interval(np.concatenate(mine)),
                "share of neighbors in the wrong order, mean over tasks and seeds",
                below=NEVER,
            )


def check_biases(histories: Histories, games: dict[str, list[Played]]) -> Iterator[Claim]:
    """Whether forms that cannot cross are biased."""
    for (world, preset), records in histories.items():
        if preset not in MONOTONE:
            continue
        plain = histories[world, "qr-dqn"]
        pair = [quantile_errors(world, each[-1]) for each in (records, plain)]
        biases = [rms_bias(each) for each in pair]
        yield check_claim(
            f"{preset} is biased on {world}",
            "Section 1" if preset != "spl-dqn" else "ours",
            f"the quantiles of {preset} on {world} are biased, more than those of qr-dqn",
            "the bias of quantiles over states and levels (root mean square), its own less that of qr-dqn, is above 0",
            jackknife_interval(lambda own, other: rms_bias(own) - rms_bias(other), *pair),
            f"difference, in standard deviations of the return; {biases[0]:.3f} and {biases[1]:.3f}",
            above=0.0,
        )
    for preset in (name for name in MONOTONE if name in games):
        own, other = (np.array([each.quantile_bias for each in games[name]]) for name in (preset, "qr-dqn"))
        yield check_claim(
            f"{preset} is biased on MinAtar",
            "Section 1" if preset != "spl-dqn" else "ours",
            f"the quantiles of {preset} on MinAtar are biased, more than those of qr-dqn",
            "the absolute bias over levels of quantiles against games that are played on, its own less that of "
            "qr-dqn, paired by seed, is above 0",
            mean_interval(own - other),
            f"difference, in standard deviations of the return; {own.mean():.3f} and {other.mean():.3f}",
            above=0.0,
        )


def check_costs() -> Iterator[Claim]:
    """Whether splines are expensive."""
    costs = json.loads(COSTS.read_text(encoding="utf-8"))
    for family, ratio in costs["spl-dqn"].items():
        yield check_claim(
            f"spl-dqn is expensive, {family}",
            "Section 1",
            f"SPL-DQN is computationally expensive, with the settings of {family}",
            f"an update takes more than {COSTLY:g} times as long as one of qr-dqn (`make bench`, one run of both in "
            "turns)",
            Interval.exact(ratio),
            "time of an update over that of qr-dqn",
            above=COSTLY,
        )


def check_projections(points: list[exact.FixedPoint], biases: dict[str, dict[int, float]]) -> Iterator[Claim]:
    """What projections and truncation do to means and variances."""
    wide = [each for each in points if each.setting == f"support × {exact.WIDTHS[1]:g}"]
    yield check_claim(
        "categories overestimate the variance",
        "Section 3.2",
        "with a wide support the categorical projection typically overestimates the variance",
        f"with {exact.ATOMS} atoms on a support twice as wide as the possible returns, the variance of the fixed point "
        f"is above {WIDE:g} times the true one in more than {TYPICAL:.0%} of processes",
        count_share(np.array([each.variance > WIDE for each in wide])),
        f"share of {len(wide)} processes; median ratio {np.median([each.variance for each in wide]):.2f}",
        above=TYPICAL,
    )
    for count in exact.COUNTS:
        own = [each for each in points if each.setting == f"N = {count}"]
        yield check_claim(
            f"{count} quantiles do not keep the mean",
            "Section 3.2",
            f"the projection on {count} quantiles is not mean-preserving",
            f"the mean of the fixed point is more than {UNBIASED:g} standard deviations of the return from the truth "
            f"in more than {TYPICAL:.0%} of processes",
            count_share(np.array([abs(each.bias) > UNBIASED for each in own])),
            f"share of {len(own)} processes; median |bias| {np.median([abs(each.bias) for each in own]):.3f}",
            above=TYPICAL,
        )
    for number in (2, 5):
        yield check_claim(
            f"dropping {number} ignores the tail",
            "Section 1",
            f"truncation of {number} of {exact.TRUNCATED} quantiles, as in TQC, loses what is in the tail",
            "in evaluation, where nothing is overestimated, dropping moves Q by less than "
            f"{IGNORED:g} standard deviations of the return (mean over processes)",
            mean_interval(np.array([each[number] - each[0] for each in biases.values()])),
            "shift of Q in standard deviations of the return",
            below=IGNORED,
        )


def check_qem(histories: Histories, errors: dict[tuple[str, str], exact.SquaredErrors]) -> Iterator[Claim]:
    """Whether QEM reads Q better off what other representations hold."""
    for name in dict.fromkeys(name for _, name in errors):
        pairs = [pair for (_, each), pair in errors.items() if each == name and max(pair) > EXACT]
        better = np.array([pair.qem < pair.own for pair in pairs])
        share = count_share(better)
        ratio = float(np.exp(np.mean([np.log(pair.qem / max(pair.own, 1e-12)) for pair in pairs])))
        yield Claim(
            f"QEM helps a perfect network: {name}",
            "Section 4",
            f"QEM reads Q off {name} with a smaller squared error than their own mean",
            f"with exact values it does for more than {TYPICAL:.0%} of the distributions where either errs by more "
            f"than {EXACT:g} of the variance",
            share,
            f"share of {len(pairs)} distributions; geometric mean of the ratios {ratio:.2g}",
            judge(share, above=TYPICAL),
        )
    for preset in dict.fromkeys(preset for _, preset in histories):
        pairs = []
        for world, records in ((world, records) for (world, name), records in histories.items() if name == preset):
            if records[-1].qem is not None:
                truth = make_world(world).means
                pairs += [np.stack([getattr(each, name) for each in records], 1) - truth for name in ("qem", "q")]
        if not pairs:
            continue
        gain = jackknife_interval(lambda *each: float(np.mean(log_ratios(*each))), *pairs)
        each = ", ".join(f"{np.exp(ratio):.2f}" for ratio in log_ratios(*pairs))
        yield check_claim(
            f"QEM helps {preset}",
            "Section 4",
            f"while {preset} learns, QEM errs less than its own mean on the same network",
            "the mean squared error of Q over states and training, QEM over the own mean, is below 1 (geometric mean "
            "over the processes)",
            Interval(*np.exp(gain)),
            f"ratio of mean squared errors; on {' and '.join(world for world, name in histories if name == preset)}: "
            f"{each}",
            below=1.0,
        )


def log_ratios(*errors: Float[np.ndarray, "seeds ..."]) -> list[float]:
    """The logarithms of the ratios of mean squares, of each pair of errors."""
    squares = [float(np.mean(each**2)) for each in errors]
    return [float(np.log(own / other)) for own, other in zip(squares[::2], squares[1::2], strict=True)]
