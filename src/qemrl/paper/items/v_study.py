"""Which estimator, order, basis and V to choose: each of them on many distributions, exact and while learning.

The paper leaves open where V comes from. Here are its own ideas (decay, counts), V estimated in five ways, and the
rivals that need no V: better levels and averages over time, heads and snapshots.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure

from qemrl.experiments.statistics import Interval, mean_interval
from qemrl.paper.claims import Claim, Result, Scale, Tick, check_claim, scale_tick
from qemrl.paper.items.frozen_lake_study import control, find_truth, make_estimators
from qemrl.paper.items.v_study_distributions import all_distributions
from qemrl.paper.items.v_study_exact import (
    CONDITIONS,
    COPIES,
    DRAWS,
    REPEATS,
    Errors,
    Key,
    exact_arms,
    exact_errors,
    repeat_auto_errors,
)
from qemrl.paper.items.v_study_live import live_arms, live_errors
from qemrl.plotting import style as figures
from qemrl.plotting.style import heading

LIVE = ("normal", "mixture", "equal mixture", "exponential", "log-normal", "frozen-lake", "minatar/breakout")
LIVE_AT = {"smoke": LIVE[1:2], "small": LIVE[:3], "paper": LIVE}
EXACT_AT = {"smoke": ("normal", "mixture", "frozen-lake")}
"""The distributions of a scale that does not have all of them."""

LAKE = {"smoke": (3, 6_000), "small": (10, 50_000), "paper": (100, 150_000)}
"""Seeds and steps of control on FrozenLake."""

WORSE, BETTER = 1.01, 0.8
"""The rules for "auto": what the ratio to the plain mean's error is below, anywhere and on average at random levels."""

Live = dict[tuple[str, str], Float[np.ndarray, "c t"]]
"""Errors by distribution and arm."""

EMA_SLOPE = "H4 slope of EMA network"

NONE = 1e-12
"""Errors below this are none: ratios of them mean nothing."""


def run(scale: Scale, seed: int, tick: Tick) -> Result:
    """All arms, exact and live."""
    known = all_distributions()
    distributions = {name: known[name] for name in EXACT_AT.get(scale, known)}
    exact = exact_errors(distributions, scale, np.random.default_rng(seed), scale_tick(tick, 0.0, 0.3))
    many = repeat_auto_errors(distributions, scale, np.random.default_rng(seed + 2**32), scale_tick(tick, 0.3, 0.2))
    live: Live = {}
    share = 0.35 / len(LIVE_AT[scale])
    for place, name in enumerate(LIVE_AT[scale]):
        part = scale_tick(tick, 0.5 + share * place, share)
        errors = live_errors(known[name], scale, 1_000 * seed + place, part)
        live |= {(name, arm): values for arm, values in errors.items()}
    lake = _lake_errors(scale, seed, scale_tick(tick, 0.85, 0.15))
    notes = [
        "Errors are in units of a distribution's variance; ratios are to the plain mean's mean squared error in the "
        "same place. Recorded returns are those of 4,096 episodes of a trained agent, joined by straight lines.",
        "Exact: given levels, bias and variance follow from the weights; they are averaged over "
        f"{DRAWS[scale]:,} draws of levels. Quantiles err independently by one standard deviation, or as in a sample "
        "of 50 returns, or as with a constant step of 0.1. The sparsity rule knows the true slopes there.",
        f"Claims on auto have {REPEATS[scale]} times as many draws.",
        f"On FrozenLake and recorded returns, which have atoms, the last two are simulated ({COPIES[scale]:,} samples, "
        "and chains). At first the formulas were used there, too; at a jump of the quantile function they gave errors "
        "of any size, and the rule for auto was not met because of single draws.",
        "Live: 32 quantiles, a step of 0.05 standard deviations, one return at a time; an EMA network and moments with "
        "a rate of 5e-4, four heads that see a random half of the returns, ten snapshots 200 steps apart.",
        "The rule of auto was chosen on six of the distributions and the 0.5/0.5 mixture, with these noises and other "
        "draws; FrozenLake and the recorded returns are new to it. The rules on live learning were written after a "
        "look at one distribution (the 0.7/0.3 mixture, 100 chains).",
    ]
    claims = [*_auto_claims(many), *_live_claims(live), _lake_claim(lake)]
    return Result([*_exact_rows(exact), *_live_rows(live)], _draw(exact, live), claims, notes)


def _lake_errors(scale: Scale, seed: int, tick: Tick) -> dict[str, Float[np.ndarray, " seeds"]]:
    """|Q̂ − V*| in the end of control on FrozenLake, for the plain mean and V at the gap."""
    truth, (count, steps) = find_truth(), LAKE[scale]
    streams = [10_000 + 1_000 * seed + k for k in range(count)]
    estimators, results = make_estimators(truth.gap), {}
    for name in ("mean", "QEM, V at the gap"):
        part = scale_tick(tick, 0.5 * len(results), 0.5)
        results[name] = np.abs(control(truth, "repaired", estimators[name], streams, steps, part).errors[:, -1])
    return results


def _ratios(exact: dict[Key, Errors], arm: str) -> dict[Key, Float[np.ndarray, " blocks"]]:
    """The ratio of an arm's error to the plain mean's, wherever the latter errs."""
    ratios = {}
    for key, errors in exact.items():
        plain = exact[*key[:3], "mean"].mse.mean()
        if key[3] == arm and plain > NONE:
            ratios[key] = errors.mse / plain
    return ratios


def _auto_claims(exact: dict[Key, Errors]) -> Iterator[Claim]:
    worst, place = _worst_ratio(exact)
    yield check_claim(
        "auto does no harm",
        "ours",
        'QEM(variance="auto") is never worse than the plain mean by more than 1% in mean squared error',
        f"the largest ratio of the two errors, over all distributions, noises and levels, is below {WORSE}",
        worst,
        f"the largest ratio; at {', '.join(place)}",
        below=WORSE,
    )
    uniform = {key: ratio for key, ratio in _ratios(exact, "auto").items() if key[0].startswith("uniform")}
    yield check_claim(
        "auto helps at random levels",
        "ours",
        'QEM(variance="auto") is better than the plain mean by at least 20% on average at random levels',
        f"the mean ratio of the two errors over distributions, noises, and 8 and 32 uniform levels is below {BETTER}",
        mean_interval(np.mean(list(uniform.values()), axis=0)),
        "the mean ratio",
        below=BETTER,
    )
    rivals = [
        exact[key].mse / exact[key[0].replace("uniform", "stratified"), key[1], key[2], "mean"].mse
        for key in uniform
        if key[1] != "none"
    ]
    yield check_claim(
        "auto against stratified levels",
        "ours",
        "auto on random levels errs less than the plain mean of as many stratified levels",
        "the geometric mean of the ratio over distributions and noises, without that of no noise, is below 1",
        mean_interval(np.exp(np.mean(np.log(rivals), axis=0))),
        "the geometric mean ratio",
        below=1.0,
    )


def _worst_ratio(exact: dict[Key, Errors]) -> tuple[Interval, tuple[str, ...]]:
    """The largest ratio of auto's error to the plain mean's, and where it is."""
    worst, place = Interval.exact(0.0), ("", "", "")
    for key, auto in exact.items():
        plain = exact[*key[:3], "mean"].mse
        if key[3] == "auto" and plain.mean() > NONE:
            # Blocks share their levels, so errors are compared block by block.
            difference = mean_interval((auto.mse - plain) / plain.mean())
            if 1 + difference.value > worst.value:
                worst, place = Interval(*(1 + end for end in difference)), key[:3]
    return worst, place


def live_ratio(live: Live, arm: str, other: str) -> Interval:
    """The ratio of mean squared errors, as a geometric mean over distributions, with a jackknife over chains."""
    distributions = list(dict.fromkeys(distribution for distribution, _ in live))
    squares = {
        name: np.stack([(live[distribution, name] ** 2).mean(1) for distribution in distributions])
        for name in (arm, other)
    }
    count = squares[arm].shape[1]

    def left_out(errors: Float[np.ndarray, "distributions c"]) -> Float[np.ndarray, "distributions c"]:
        return np.log((errors.sum(1, keepdims=True) - errors) / (count - 1))

    pseudo = (left_out(squares[arm]) - left_out(squares[other])).mean(0)
    center = float((np.log(squares[arm].mean(1)) - np.log(squares[other].mean(1))).mean())
    reach = 1.96 * float(np.sqrt((count - 1) / count * ((pseudo - pseudo.mean()) ** 2).sum()))
    return Interval(*(float(np.exp(center + shift)) for shift in (0.0, -reach, reach)))


LIVE_CLAIMS = (
    ("decay", "Section 6", "H4 decay", "H4 tail 1.5", "A V that decays with time errs less than a constant one"),
    ("counts", "Section 6", "H4 counts", "H4 tail 1.5", "A V that decays with counts errs less than a constant one"),
    ("slope helps", "ours", EMA_SLOPE, "mean", "V from the slope of an EMA network beats the plain mean"),
    ("twin helps", "ours", "H4 slope of twin", "mean", "V from the slope of a twin beats the plain mean"),
    ("heads help", "ours", "H4 heads", "mean", "V from heads beats the plain mean"),
    ("residuals help", "ours", "H4 TD residuals", "mean", "V from TD residuals beats the plain mean"),
    ("GLS helps", "ours", "H4 TD residuals, GLS", "H4 TD residuals", "Covariances are better than variances alone"),
    ("not from itself", "ours", "mean", "H4 slope of itself", "V from the same quantiles is worse than the mean"),
    ("V against averaging", "ours", EMA_SLOPE, "mean, EMA network", "An estimated V beats an EMA network"),
)
"""The name of a claim, where it is made, which arm is to err less than which, and the statement."""


def _live_claims(live: Live) -> Iterator[Claim]:
    for name, where, arm, other, statement in LIVE_CLAIMS:
        yield check_claim(
            name,
            where,
            f"{statement}, while quantiles are learned.",
            f"the error of “{arm}” over that of “{other}”, geometric mean over distributions, is below 1",
            live_ratio(live, arm, other),
            "the ratio of mean squared errors",
            below=1.0,
        )


def _lake_claim(lake: dict[str, Float[np.ndarray, " seeds"]]) -> Claim:
    return check_claim(
        "V at the gap",
        "ours",
        "On FrozenLake a V of 1.5 around the true gap of the return makes control err less than the plain mean",
        "|Q̂ − V*| of the plain mean less that of QEM in the end, seed by seed, with new seeds, is above 0",
        mean_interval(lake["mean"] - lake["QEM, V at the gap"]),
        f"the difference; the plain mean has {lake['mean'].mean():.3f}",
        above=0.0,
    )


def _exact_rows(exact: dict[Key, Errors]) -> Iterator[dict[str, Any]]:
    arms = exact_arms()
    for (condition, noise, distribution, arm), errors in exact.items():
        mse, plain = float(errors.mse.mean()), float(exact[condition, noise, distribution, "mean"].mse.mean())
        spread = float(errors.variance.mean()) + max(0.0, float(errors.squares.mean()) - errors.bias**2)
        ratio = mse / plain if plain > NONE else 1.0 if mse <= NONE else -1.0
        what = {"levels": condition, "noise": noise, "distribution": distribution, "arm": arm}
        yield what | arms[arm].columns | {"bias": errors.bias, "variance": spread, "mse": mse, "ratio": ratio}


def _live_rows(live: Live) -> Iterator[dict[str, Any]]:
    arms = live_arms()
    for (distribution, arm), errors in live.items():
        mse, plain = (float((each**2).mean()) for each in (errors, live[distribution, "mean"]))
        what = {"levels": "midpoints 32", "noise": "live", "distribution": distribution, "arm": arm}
        numbers = {"bias": float(errors.mean()), "variance": float(errors.var()), "mse": mse, "ratio": mse / plain}
        yield what | arms[arm].columns | numbers


def summary(exact: dict[Key, Errors], arm: str, condition: str) -> tuple[float, float]:
    """The mean and the largest ratio to the plain mean's error, over distributions and noises.

    At midpoints there is nothing to see without noise: the plain mean of a symmetric distribution is exact there.
    """
    ratios = [
        float(blocks.mean())
        for (where, noise, _, _), blocks in _ratios(exact, arm).items()
        if where == condition and (noise != "none" or not condition.startswith("midpoints"))
    ]
    return float(np.mean(ratios)), max(ratios)


def _draw(exact: dict[Key, Errors], live: Live) -> Figure:
    """Ratios to the plain mean: on the left by estimator and levels, on the right while learning."""
    shown = [name for name in exact_arms() if name != "mean" and not name.startswith(("H3", "L3"))]
    table = np.array([[summary(exact, arm, str(c)) for c in CONDITIONS] for arm in shown])
    distributions = list(dict.fromkeys(name for name, _ in live))
    arms = [name for name in live_arms() if name != "mean"]
    plain = {name: (live[name, "mean"] ** 2).mean() for name in distributions}
    learned = np.array([[(live[name, arm] ** 2).mean() / plain[name] for name in distributions] for arm in arms])
    figure = Figure(figsize=(10.4, 7.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(len(CONDITIONS) * 1.25, max(len(distributions), 3)))
    _heat(left, table[..., 0], table[..., 1], shown, [str(c).replace(" ", "\n") for c in CONDITIONS])
    left.set_title("exact: mean over distributions and noises | worst")
    _heat(right, learned, None, arms, [name.replace("/", "/\n").replace(" ", "\n") for name in distributions])
    right.set_title("while learning, 32 midpoints")
    heading(figure, "Mean squared error over that of the plain mean: blue is better, orange is worse")
    return figure


def _heat(
    axis: Axes,
    values: Float[np.ndarray, "rows columns"],
    worst: Float[np.ndarray, "rows columns"] | None,
    rows: list[str],
    columns: list[str],
) -> None:
    colors = LinearSegmentedColormap.from_list("ratio", [figures.COLORS["blue"], "white", figures.COLORS["orange"]])
    axis.imshow(np.log10(np.maximum(values, 1e-9)), cmap=colors, norm=TwoSlopeNorm(0.0, -1.5, 1.5), aspect="auto")
    for row, column in np.ndindex(*values.shape):
        text = _short(float(values[row, column]))
        if worst is not None:
            text += f" | {_short(float(worst[row, column]))}"
        axis.text(column, row, text, ha="center", va="center", fontsize=6, color=figures.INK)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_xticks(range(len(columns)), columns)
    axis.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=False)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.1e}" if ratio >= 1000 else f"{ratio:.0f}"
