"""Wrong arguments are a ValueError or a TypeError, where nothing checks types at run time either."""

import subprocess
import sys

CALLS = """
import warnings
import numpy as np, torch, qemrl, qemrl.torch
from qemrl import *

warnings.simplefilter("error")
levels, normal, inputs = midpoints(4), DISTRIBUTIONS["normal"], VarianceInputs(ema=np.zeros(3))
calls = {
    "counts": [lambda wrong=wrong: midpoints(wrong) for wrong in (2.5, True, -1, 10**30, "4", None, torch.tensor([]))],
    "shapes": [
        lambda wrong=wrong: uniform_levels(np.random.default_rng(0), wrong)
        for wrong in ((), (2, -1), (True, 2), "ab", 2.5, torch.ones(2, 3), 10**30)
    ],
    "randomness": [lambda wrong=wrong: uniform_levels(wrong, 4) for wrong in (None, 3, "key", np.random)],
    "numbers": [
        lambda kind=kind, wrong=wrong: kind(wrong)
        for kind in (CVaR, VaR, Wang, CPW, MeanStd, ConstantVariance, TailVariance, SpacingVariance, ResidualVariance,
                     DecayingVariance, CountedVariance, SparsityVariance, HeadsVariance, IndependentNoise,
                     SampleQuantileNoise, SGDNoise)
        for wrong in ("1", None, 1j, [], 10**400, float("nan"), torch.zeros(2), np.zeros(2))
    ],
    "levels of V": [
        lambda model=model, wrong=wrong: model(wrong)
        for model in (ConstantVariance(), TailVariance(2.0), BandVariance(2.0, 0.4, 0.6), SpacingVariance(), cells)
        for wrong in (None, "a", 0.5, [], [2.0], [None], np.array([1j]), torch.tensor([]))
    ],
    "estimated V": [
        lambda model=model, wrong=wrong: model.estimate(levels, wrong)
        for model in (DecayingVariance(), CountedVariance(), SparsityVariance(), HeadsVariance(), ResidualVariance())
        for wrong in (None, {}, 3, VarianceInputs(), inputs, VarianceInputs("a", "b", 1j, None, np.zeros(4), "c"))
    ],
    "inputs of QEM": [
        lambda wrong=wrong: QEM(2, SparsityVariance()).weights(levels, None, wrong) for wrong in (3, {}, "a", inputs)
    ],
    "diagnostics": [
        lambda: estimation_error(3, normal, levels, SGDNoise()),
        lambda: estimation_error(QEM, normal, levels, SGDNoise()),
        lambda: estimation_error(QEM(), "normal", levels, SGDNoise()),
        lambda: estimation_error(QEM(), normal, levels, None),
        lambda: estimation_error(QEM(), normal, [0.0, 0.2, 0.5, 1.0], SGDNoise()),
        lambda: efficiency(QEM(), normal, 10**400, SGDNoise()),
        lambda: sampling_error(QEM(), normal, uniform_levels, 2.5, np.random.default_rng(0)),
        lambda: sampling_error(QEM(), normal, 3, 8, np.random.default_rng(0)),
        lambda: r_squared(EmpiricalMean(), levels, levels),
        lambda: variance_reduction(levels, -levels),
        lambda: variance_reduction([0.5] * 4, np.ones(4)),
        lambda: paper_condition([0.5], [1.0]),
        lambda: paper_condition(levels, np.ones(3)),
        lambda: crossing_rate(torch.zeros(2), levels),
        lambda: SGDNoise().covariance(None, levels),
        lambda: SampleQuantileNoise().covariance(normal, "ab"),
        lambda: IndependentNoise().error_variance(None, normal, levels),
    ],
    "modules": [
        lambda module=module, wrong=wrong: module(*[wrong] * (1 + isinstance(module, qemrl.torch.Implicit)))
        for module in (qemrl.torch.QEM(4), qemrl.torch.Mean(4), qemrl.torch.MeanStd(4), qemrl.torch.ImplicitQEM(2),
                       qemrl.torch.left_truncated_std)
        for wrong in (None, "a", levels, torch.tensor(1.0), torch.arange(4), torch.ones(4) * 1j)
    ] + [lambda wrong=wrong: qemrl.torch.make_module(wrong) for wrong in (None, "qem", QEM, 3)],
}
for kind, each in calls.items():
    for number, call in enumerate(each):
        try:
            found = call()
        except (ValueError, TypeError):
            continue
        except Exception as error:
            found = repr(error)
        print(kind, number, found)
"""


def test_no_other_error_and_no_warning_comes_out_of_estimators():
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
