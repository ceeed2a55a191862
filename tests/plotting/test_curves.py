"""Learning curves: what is drawn of them."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from qemrl.experiments.runs import build_curve
from qemrl.plotting.curves import Curve, draw_curves
from qemrl.plotting.style import PRESET_COLORS

ENV = "probe/1"


def test_the_average_of_a_curve_is_its_area_over_its_length():
    curve = Curve("dqn", ENV, np.array([10, 20, 40]), np.array([[0.0, 2.0, 4.0]]))
    assert curve.average == pytest.approx([(10 * 1 + 20 * 3) / 30])
    assert Curve("dqn", ENV, np.array([10]), np.array([[7.0]])).average.tolist() == [7.0]


def test_every_seed_is_a_thin_line_and_from_three_on_there_is_a_band():
    steps = np.array([1, 2, 3])
    for count, bands in ((1, 0), (2, 0), (3, 2)):
        returns = np.arange(3.0 * count).reshape(count, 3)
        by_label = {"qr-dqn": returns, "qem-dqn": returns + 1}
        by_seed = {
            label: {seed: dict(zip(steps.tolist(), row, strict=True)) for seed, row in enumerate(found.tolist())}
            for label, found in by_label.items()
        }
        curves = [curve for label in by_seed if (curve := build_curve(label, ENV, by_seed[label])) is not None]
        (axis,) = draw_curves(curves).axes
        assert len(axis.lines) == 2 * (1 + (count if count > 1 else 0))
        assert len(axis.collections) == bands
        bold = [line for line in axis.lines if line.get_linewidth() > 1]
        np.testing.assert_allclose(np.asarray(bold[0].get_ydata()), returns.mean(0))
        assert [to_hex(line.get_color()) for line in bold] == [PRESET_COLORS["qr-dqn"], PRESET_COLORS["qem-dqn"]]
        assert {text.get_text() for text in axis.texts} == {"qr-dqn", "qem-dqn"}


def test_environments_are_panels_and_labels_keep_their_line_styles():
    steps = np.array([1, 2])
    curves = [Curve(name, env, steps, np.ones((2, 2))) for env in "abcd" for name in ("x", "y", "dqn")]
    figure = draw_curves(curves)
    assert [axis.get_title() for axis in figure.axes] == list("abcd")
    for axis in figure.axes:
        colors = [line.get_color() for line in axis.lines if line.get_linewidth() > 1]
        assert len(set(colors)) == 3
        assert colors == [line.get_color() for line in figure.axes[0].lines if line.get_linewidth() > 1]
    with pytest.raises(ValueError, match="no curve"):
        draw_curves([])


def test_names_at_the_ends_do_not_lie_on_one_another():
    steps = np.array([1, 2])
    ends = {"a": 1.0, "b": 1.001, "c": 1.002, "d": 0.0}
    figure = draw_curves([Curve(name, ENV, steps, np.array([[0.0, end]])) for name, end in ends.items()])
    heights = {text.get_text(): float(text.get_position()[1]) for text in figure.axes[0].texts}
    assert sorted(heights, key=heights.__getitem__) == ["d", "a", "b", "c"]
    assert np.diff(sorted(heights.values())).min() > 0.07
    assert max(heights.values()) <= 1
