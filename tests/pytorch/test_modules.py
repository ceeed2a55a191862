"""The PyTorch modules are the NumPy estimators: in every dtype, under every transform, wherever they are moved."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import qemrl
import qemrl.torch
from qemrl.estimators import Statistic
from qemrl.torch import QEM, Implicit, ImplicitQEM, Linear, MeanStd, make_module

RISKS: list[Statistic] = [qemrl.CVaR(0.1), qemrl.VaR(0.3), qemrl.Wang(-0.5), qemrl.CPW(), qemrl.MeanStd(0.7)]
ESTIMATORS: list[Statistic] = [
    qemrl.EmpiricalMean(),
    qemrl.QEM(),
    qemrl.QEM(2, qemrl.TailVariance(1.5)),
    qemrl.QEM(6, basis="legendre"),
    qemrl.QEM(variance="auto"),
]
STATISTICS = [*ESTIMATORS, *RISKS]


def make_data(batch: tuple[int, ...] = (8, 3), count: int = 25, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(3, 2, (*batch, count)), generator.uniform(size=(batch[0], *(1 for _ in batch[1:]), count))


def close(found: torch.Tensor, expected, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(found.detach().double().numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("statistic", STATISTICS, ids=str)
@pytest.mark.parametrize("levels", [25, "levels", "probs"])
def test_at_fixed_levels_a_module_is_its_estimator(statistic, levels):
    values, _ = make_data()
    generator = np.random.default_rng(1)
    probs = generator.uniform(0.5, 1.5, 25) if levels == "probs" else None
    given = 25 if levels == 25 else np.sort(generator.uniform(size=25))
    known = qemrl.midpoints(25) if levels == 25 else given
    module = make_module(statistic, given, probs, dtype=torch.float64)
    close(module(torch.tensor(values)), statistic.mean(values, known, probs))


@pytest.mark.parametrize("statistic", STATISTICS, ids=str)
@pytest.mark.parametrize("with_probs", [False, True])
def test_at_levels_of_every_call_a_module_is_its_estimator(statistic, with_probs):
    values, levels = make_data()
    probs = np.random.default_rng(1).uniform(0.5, 1.5, levels.shape) if with_probs else None
    module = make_module(statistic)
    given = None if probs is None else torch.tensor(probs)
    close(module(torch.tensor(values), torch.tensor(levels), given), statistic.mean(values, levels, probs))


@pytest.mark.parametrize("order", [1, 2, 4, 6])
@pytest.mark.parametrize("basis", ["hermite", "legendre"])
def test_moments_and_fits_are_those_of_the_estimator(order, basis):
    values, levels = make_data()[0], qemrl.midpoints(25)
    estimator = qemrl.QEM(order, qemrl.TailVariance(1.2), basis)
    module = QEM(25, order, qemrl.TailVariance(1.2), basis).double()
    for found, expected in zip(module.moments(torch.tensor(values)), estimator.moments(values, levels), strict=True):
        close(found, expected, 1e-9)
    close(module.fit(torch.tensor(values)), estimator.fit(values, levels))


def test_levels_that_coincide_give_what_the_estimator_gives():
    values, levels = make_data()
    levels[:, :, 6:] = levels[:, :, :1]
    close(ImplicitQEM()(torch.tensor(values), torch.tensor(levels)), qemrl.QEM().mean(values, levels), 1e-6)
    levels[:, :, 1:] = levels[:, :, :1]
    assert torch.isfinite(ImplicitQEM()(torch.tensor(values), torch.tensor(levels))).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("module", [QEM(25), Linear(qemrl.CVaR(0.1), 25), MeanStd(25), ImplicitQEM()], ids=str)
def test_results_have_the_dtype_of_the_values_and_their_precision(module, dtype):
    values, levels = (torch.tensor(each).to(dtype) for each in make_data())
    arguments = (values, levels) if isinstance(module, Implicit) else (values,)
    found = module(*arguments)
    assert found.dtype == dtype
    exact = copy.deepcopy(module).double()(*(each.double() for each in arguments))
    assert float((found.double() - exact).abs().max()) < 30 * torch.finfo(dtype).eps + 1e-6


def test_a_module_in_half_precision_keeps_weights_in_single_precision():
    module = nn.Sequential(nn.Linear(4, 25), QEM(25)).to(torch.bfloat16)
    assert module[0].weight.dtype == torch.bfloat16
    assert {buffer.dtype for buffer in module[1].buffers()} == {torch.float32}
    assert module(torch.zeros(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_module_that_is_converted_and_back_has_lost_nothing():
    module, before = QEM(25, dtype=torch.float64), QEM(25, dtype=torch.float64).weights
    torch.testing.assert_close(module.float().half().double().weights, before, rtol=0, atol=0)


def test_weights_follow_to_another_device():
    module = QEM(25).to("meta")
    assert module.weights.device.type == "meta"
    assert module(torch.empty(3, 25, device="meta")).shape == (3,)
    assert QEM(25, device="meta").rows.device.type == "meta"


def test_autocast_does_not_round_q():
    values = torch.tensor(make_data()[0], dtype=torch.float32)
    module = QEM(25)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = module(values)
    torch.testing.assert_close(inside, module(values), rtol=0, atol=0)


def test_state_dicts_of_networks_stay_as_they_were():
    bare, network = nn.Sequential(nn.Linear(4, 25)), nn.Sequential(nn.Linear(4, 25), QEM(25))
    assert network.state_dict().keys() == bare.state_dict().keys()
    network.load_state_dict(bare.state_dict())
    assert list(QEM(25).parameters()) == []


@pytest.mark.parametrize("statistic", STATISTICS, ids=str)
def test_gradients_are_those_of_differences(statistic):
    values, levels = (torch.tensor(each, requires_grad=index == 0) for index, each in enumerate(make_data((2, 2), 7)))
    assert torch.autograd.gradcheck(make_module(statistic, 7, dtype=torch.float64), (values,))
    assert torch.autograd.gradcheck(lambda values: make_module(statistic)(values, levels), (values,))


def test_equal_values_have_a_finite_gradient():
    values = torch.ones(2, 7, requires_grad=True)
    (MeanStd(7)(values).sum() + QEM(7).moments(values).variance.sum()).backward()
    assert values.grad is not None
    assert torch.isfinite(values.grad).all()


def test_torch_func_transforms_pass_through():
    values, levels = (torch.tensor(each) for each in make_data())
    fixed, implicit = QEM(25).double(), ImplicitQEM()
    torch.testing.assert_close(torch.func.vmap(fixed)(values), fixed(values))
    torch.testing.assert_close(torch.func.vmap(implicit)(values, levels), implicit(values, levels))
    gradient = torch.func.grad(lambda values: fixed(values).sum())(values)
    torch.testing.assert_close(gradient, fixed.weights.expand_as(values))


@pytest.mark.parametrize(
    "module",
    [QEM(25), ImplicitQEM(), ImplicitQEM(variance=qemrl.TailVariance(1.5)), Implicit(qemrl.CPW()), MeanStd(25)],
    ids=str,
)
def test_modules_are_exported_whole(module):
    values, levels = (torch.tensor(each, dtype=torch.float32) for each in make_data())
    arguments = (values, levels) if isinstance(module, Implicit) else (values,)
    exported = torch.export.export(module, arguments).module()
    torch.testing.assert_close(exported(*arguments), module(*arguments), rtol=1e-5, atol=1e-5)


COMPILED = """
import torch, qemrl, qemrl.torch

class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fixed, self.drawn = qemrl.torch.QEM(25), qemrl.torch.ImplicitQEM(variance=qemrl.TailVariance(1.5))
        self.risks = torch.nn.ModuleList(qemrl.torch.Implicit(risk) for risk in (qemrl.CVaR(0.1), qemrl.CPW()))

    def forward(self, values, levels):
        moments = self.fixed.moments(values)
        drawn = self.drawn(values, levels) + sum(risk(values, levels) for risk in self.risks)
        return self.fixed(values) + moments.variance + drawn

torch.manual_seed(0)
values, levels, head = torch.randn(8, 3, 25), torch.rand(8, 1, 25), Head()
found = torch.compile(head, fullgraph=True, backend="aot_eager")(values, levels)
torch.testing.assert_close(found, head(values, levels), rtol=1e-5, atol=1e-5)
"""


def test_modules_are_compiled_as_one_graph_without_a_warning():
    """In a process of its own, because types are checked at run time here, which cannot be compiled."""
    options = ["-W", "error", "-W", "ignore::DeprecationWarning"]  # the compiler's own
    done = subprocess.run([sys.executable, *options, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QEM(25)(torch.ones(3, 24)), r"made for 25 quantiles, got values of the shape \(3, 24\)"),
        (lambda: QEM(25).moments(torch.ones(24)), "made for 25 quantiles"),
        (lambda: MeanStd(5)(torch.ones(24)), "made for 5 quantiles"),
        (lambda: QEM(3), "order 4 needs at least 4 levels, got 3"),
        (lambda: QEM(2.5), "whole number of quantiles or their levels .* got 2.5"),
        (lambda: QEM(True), "whole number of quantiles"),
        (lambda: QEM([0.1, 0.2, 0.3, 1.4]), r"levels must lie in \[0, 1\], got 1.4 at index 3"),
        (lambda: QEM(torch.rand(8, 25)), "levels that come with every call are for Implicit"),
        (lambda: QEM(25, order=7), "order must be between 1 and 6, got 7"),
        (lambda: QEM(25, variance=qemrl.ResidualVariance()), "ResidualVariance estimates V while learning"),
        (lambda: Implicit(qemrl.QEM(variance=qemrl.ResidualVariance())), "ResidualVariance estimates V while learning"),
        (lambda: ImplicitQEM()(torch.ones(2, 25), torch.ones(2, 24)), "25 values for 24 levels"),
        (lambda: ImplicitQEM()(torch.ones(2, 3), torch.rand(2, 3)), "order 4 needs at least 4 levels, got 3"),
        (lambda: Linear(qemrl.MeanStd(), 25), "MeanStd is not a weighted sum of quantiles; use make_module"),
        (lambda: MeanStd(25, penalty=float("nan")), "penalty must be finite"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_module_says_what_it_is():
    assert "order=2" in repr(QEM(25, order=2))
    assert "quantiles=25" in repr(QEM(25))
    assert "CVaR(level=0.1)" in repr(Implicit(qemrl.CVaR(0.1)))


def test_weights_that_were_made_in_inference_mode_serve_autograd_as_well():
    levels, values = qemrl.midpoints(23), torch.ones(2, 23)
    with torch.inference_mode():
        qemrl.QEM().mean(values, levels)
    values = values.clone().requires_grad_()
    qemrl.QEM().mean(values, levels).sum().backward()
    assert values.grad is not None


def test_levels_on_an_accelerator_are_not_solved_for_in_silence():
    with pytest.warns(UserWarning, match="each call solves for their weights. Give them as NumPy, or use qemrl.torch"):
        qemrl.QEM().mean(torch.empty(2, 25, device="meta"), torch.empty(25, device="meta"))
