"""Whole updates (target, loss, gradient, optimizer) against references in PyTorch, which differentiates by itself."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch_updates import ACTIONS, BATCH, ENTROPY, LOSSES, SPREADS, Data, Params, Tensor, by_path, law_expectiles, read

from qemrl.agents.agent import AgentState
from qemrl.agents.optimizer import AdamConfig
from qemrl.agents.presets import PRESETS
from qemrl.agents.value import NetworkConfig, ValueAgent, ValueConfig
from qemrl.types import Batch, EnvSpec

pytestmark = pytest.mark.usefixtures("quick_compilation")

FEATURES, UPDATES = 5, 2
SPEC = EnvSpec("toy", (2,), "float32", ACTIONS)
RATE, EPSILON = 0.1, 0.1
"""The step size, and an ε so large that a gradient of the wrong size gives another step."""

FRACTION_RATE = 0.05
TINY: dict[str, dict[str, Any]] = {
    "fqf": {"num_fractions": 4, "num_cosines": 3, "fraction_rate": FRACTION_RATE, "entropy": ENTROPY},
    "nc-qr-dqn": {"num_quantiles": 4},
    "ndqfn": {"num_levels": 3, "num_loss_levels": 4, "num_target_levels": 5, "num_cosines": 3},
    "er-dqn": {"num_expectiles": 5},
    "mmd-dqn": {"num_particles": 4},
    "spl-dqn": {"num_quantiles": 4, "num_bins": 3},
    "cr-dqn": {"num_quantiles": 4},
    "hl-gauss": {"num_atoms": 7, "low": -2.0, "high": 2.0},
    "bootstrapped-dqn": {"num_heads": 3},
    "bootstrapped-qr-dqn": {"num_heads": 3},
    "m-iqn": {"num_levels": 4, "num_target_levels": 5, "num_acting_levels": 3, "num_cosines": 3},
}
"""The sizes; what else a preset has set stays."""


def configure(name: str) -> ValueConfig:
    config = PRESETS[name].configure("classic")
    assert isinstance(config, ValueConfig)
    representation: Any = config.representation
    representation = replace(representation, **TINY[name])
    if name == "bootstrapped-qr-dqn":
        representation = replace(representation, head=replace(representation.head, num_quantiles=4))
    return replace(
        config,
        representation=representation,
        network=NetworkConfig(widths=(FEATURES,)),
        optimizer=AdamConfig(RATE, EPSILON),
    )


def scatter(network: Any, rng: np.random.Generator) -> Any:
    """The network with parameters of another draw."""
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(scale=0.6, size=leaf.shape), jnp.float32), network)


def with_expectiles(network: Any) -> Any:
    """The network with outputs that are expectiles: of each action equal weights, and biases that fit a known law."""
    last = network.head.advantage.layers[0]
    weight = jnp.repeat(last.weight[::5], 5, axis=0)
    bias = jnp.asarray(np.outer(SPREADS, law_expectiles()).ravel(), jnp.float32)

    def parts(each: Any) -> tuple[Any, Any]:
        return each.head.advantage.layers[0].weight, each.head.advantage.layers[0].bias

    return eqx.tree_at(parts, network, (weight, bias))


def with_close_actions(network: Any) -> Any:
    """The network with Q of two actions about a temperature of 0.03 apart, and of one beyond the floor below them."""
    last = network.head.streams.advantage.layers[0]
    bias = jnp.asarray([-1.5, 0.02, 0.0], jnp.float32)

    def parts(each: Any) -> tuple[Any, Any]:
        return each.head.streams.advantage.layers[0].weight, each.head.streams.advantage.layers[0].bias

    return eqx.tree_at(parts, network, (0.05 * last.weight, bias))


TARGETS: dict[str, Callable[[Any], Any]] = {"er-dqn": with_expectiles, "m-iqn": with_close_actions}
"""Which target networks are not drawn as they come."""


def draw_batch(rng: np.random.Generator) -> Batch:
    return Batch(
        rng.normal(size=(BATCH, 2)).astype(np.float32),
        rng.integers(ACTIONS, size=BATCH).astype(np.int32),
        rng.normal(size=BATCH).astype(np.float32),
        np.array([0.9, 0.0, 0.97, 0.99], np.float32),
        rng.normal(size=(BATCH, 2)).astype(np.float32),
        None,
        rng.uniform(0.3, 1, BATCH).astype(np.float32),
        rng.random((BATCH, 3)) < 0.6,
    )


class Course(NamedTuple):
    """Parameters before the first update and after each; what the updates gave; what they were made from."""

    params: list[Params]
    target: Params
    losses: list[float]
    priorities: list[np.ndarray]
    data: list[Data]


def updated(name: str) -> Course:
    """The course of updates by the library."""
    agent, rng = ValueAgent(configure(name), SPEC), np.random.default_rng(7)
    state = jax.jit(agent.init)(jax.random.key(0))
    state = state._replace(params=state.params._replace(network=scatter(state.params.network, rng)))
    state = state._replace(target=TARGETS.get(name, lambda network: network)(scatter(state.target, rng)))
    course = Course([by_path(state.params.network)], by_path(state.target), [], [], [])
    learn = jax.jit(agent.update)
    for number in range(UPDATES):
        batch, key = draw_batch(rng), jax.random.key(number)
        masked = batch if name.startswith("bootstrapped") else batch._replace(member_mask=None)
        params, optimizer, update = learn(state, jax.device_put(masked), key, jnp.int32(number))
        state = AgentState(params, optimizer, state.target)
        course.params.append(by_path(params.network))
        course.losses.append(float(update.loss))
        course.priorities.append(np.asarray(update.priorities))
        course.data.append(read(batch, key))
    return course


def centered_rmsprop(gradients: list[Tensor]) -> Tensor:
    """The last step of RMSProp with decay 0.95, and 1e-5 under the root, after these gradients."""
    square, mean = torch.zeros_like(gradients[0]), torch.zeros_like(gradients[0])
    for gradient in gradients:
        square, mean = (0.95 * old + 0.05 * new for old, new in ((square, gradient**2), (mean, gradient)))
    return gradients[-1] / (square - mean**2 + 1e-5).sqrt()


@pytest.mark.parametrize("name", TINY)
def test_an_update_is_that_of_the_formulas(name: str):
    """Loss, priorities, and how far every parameter moves.

    The library computes in float32: parameters near 1 are then exact to 6e-8, which is 6e-7 of a step of 0.1, and
    gradients are sums of some hundred terms. Steps agree within 2e-5 of the step size.
    """
    course = updated(name)
    p = {path: leaf.clone().requires_grad_() for path, leaf in course.params[0].items()}
    own = {path: each for path, each in p.items() if path.startswith(".head.fractions")}
    adam = torch.optim.Adam([each for path, each in p.items() if path not in own], RATE, eps=EPSILON)
    seen: dict[str, list[Tensor]] = {path: [] for path in own}
    for number, data in enumerate(course.data):
        before = {path: leaf.detach().clone() for path, leaf in p.items()}
        losses = LOSSES[name](p, course.target, data)
        loss = (data.weight * losses).mean()
        for each in p.values():
            each.grad = None
        loss.backward()
        adam.step()
        for path, each in own.items():
            assert each.grad is not None
            seen[path].append(each.grad)
            each.data -= FRACTION_RATE * centered_rmsprop(seen[path])
        assert course.losses[number] == pytest.approx(loss.item(), rel=1e-5)
        np.testing.assert_allclose(course.priorities[number], losses.detach().sqrt(), rtol=1e-5)
        assert course.params[number + 1].keys() == p.keys()
        for path, leaf in p.items():
            rate = FRACTION_RATE if path in own else RATE
            moved = (course.params[number + 1][path] - course.params[number][path]) / rate
            np.testing.assert_allclose(moved, (leaf.detach() - before[path]) / rate, rtol=0, atol=2e-5, err_msg=path)
    for path, leaf in p.items():  # there is a step of every array to compare
        assert (leaf.detach() - course.params[0][path]).abs().max() > 0.01 * (FRACTION_RATE if path in own else RATE)
