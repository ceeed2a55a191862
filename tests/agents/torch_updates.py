"""What updates are to do, written in PyTorch from the formulas: losses of one batch for each algorithm.

They know nothing of the library but the names of the parameters, and draw levels with the keys that the agent draws
them with. Parameters are those of one dense layer and a head, by their place in the network.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from scipy import optimize
from torch.nn.functional import relu, softplus

from qemrl.types import Batch

Tensor = torch.Tensor
Params = dict[str, Tensor]
BATCH, ACTIONS = 4, 3
ENTROPY = 0.02


class Data(NamedTuple):
    """A batch, and the key that random levels are drawn with."""

    seen: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    following: Tensor
    weight: Tensor
    mask: Tensor
    key: Any


def read(batch: Batch, key: Any) -> Data:
    """A batch in double precision, and the key of its update."""
    parts = (batch.observation, batch.reward, batch.discount, batch.next_observation, batch.weight, batch.member_mask)
    seen, reward, discount, following, weight, mask = (torch.tensor(np.asarray(part, np.float64)) for part in parts)
    return Data(seen, torch.tensor(batch.action), reward, discount, following, weight, mask, key)


def by_path(network: Any) -> Params:
    """The parameters of a network by their place in it, in double precision."""
    leaves = jax.tree_util.tree_leaves_with_path(network)
    return {jax.tree_util.keystr(path): torch.tensor(np.asarray(leaf, np.float64)) for path, leaf in leaves}


# What the references have in common


def affine(p: Params, name: str, inputs: Tensor) -> Tensor:
    return inputs @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def torso(p: Params, seen: Tensor) -> Tensor:
    return relu(affine(p, ".torso.dense.layers[0]", seen))


def outputs(p: Params, name: str, features: Tensor) -> Tensor:
    """[..., actions, n]."""
    found = affine(p, f"{name}.advantage.layers[0]", features)
    return found.reshape(*found.shape[:-1], ACTIONS, -1)


def pick(values: Tensor, action: Tensor) -> Tensor:
    """The rows [batch, n] of one action, from [batch, actions, n]."""
    return values[torch.arange(BATCH), action]


def backed_up(d: Data, values: Tensor) -> Tensor:
    return d.reward[:, None] + d.discount[:, None] * values


def midpoints(n: int) -> Tensor:
    return (2 * torch.arange(1, n + 1) - 1).double() / (2 * n)


def huber(u: Tensor) -> Tensor:
    return torch.where(u.abs() <= 1, u**2 / 2, u.abs() - 0.5)


def quantile_huber(values: Tensor, levels: Tensor, goal: Tensor) -> Tensor:
    """Summed over own levels, averaged over the target's, κ = 1."""
    u = goal.detach()[:, None, :] - values[:, :, None]
    sides = (levels.expand(values.shape)[:, :, None] - (u.detach() < 0).double()).abs()
    return (sides * huber(u)).mean(2).sum(1)


def cosines(levels: Tensor, count: int) -> Tensor:
    return torch.cos(torch.pi * torch.arange(1, count + 1) * levels[..., None])


def implicit(p: Params, head: str, features: Tensor, levels: Tensor) -> Tensor:
    """IQN's quantiles [batch, actions, n] at levels [batch, n]."""
    embedded = relu(affine(p, f"{head}.embedding", cosines(levels, 3)))
    return outputs(p, f"{head}.streams", features[:, None] * embedded)[..., 0].transpose(1, 2)


def drawn(key: Any, n: int) -> Tensor:
    """Uniform levels, by the second half of the key; the first is for noise in the weights."""
    return torch.tensor(np.asarray(jax.random.uniform(jax.random.split(key)[1], (BATCH, n), jnp.float32), np.float64))


def interpolated(levels: Tensor, grid: Tensor, values: Tensor) -> Tensor:
    """Linear between the points of a grid [n], flat beyond it: values [..., n] at levels [batch, m]."""
    at = levels.clamp(grid[0], grid[-1])
    place = torch.searchsorted(grid, at, right=True).clamp(1, len(grid) - 1)
    share = (at - grid[place - 1]) / (grid[place] - grid[place - 1])
    return values.gather(-1, place - 1) * (1 - share) + values.gather(-1, place) * share


# The losses of each algorithm, one number for each transition


def fqf(p: Params, t: Params, d: Data) -> Tensor:
    def fractions(p: Params, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        widths = torch.softmax(affine(p, ".head.fractions.last", features.detach()), -1)
        ends = torch.cat([torch.zeros(BATCH, 1), widths.cumsum(-1)], -1)
        return ends, (ends[:, 1:] + ends[:, :-1]) / 2, widths

    there = torso(t, d.following)
    _, middles, widths = fractions(t, there)
    following = implicit(t, ".head.quantiles", there, middles)
    goal = backed_up(d, pick(following, (widths[:, None] * following).sum(-1).argmax(-1)))
    features = torso(p, d.seen)
    ends, middles, widths = fractions(p, features)
    loss = quantile_huber(
        pick(implicit(p, ".head.quantiles", features, middles.detach()), d.action), middles.detach(), goal
    )
    with torch.no_grad():
        inner = pick(implicit(p, ".head.quantiles", features, ends[:, 1:-1]), d.action)
        middle = pick(implicit(p, ".head.quantiles", features, middles), d.action)
        slopes = 2 * inner - middle[:, 1:] - middle[:, :-1]
    proposals = (slopes * ends[:, 1:-1]).sum(-1) + ENTROPY * (widths * widths.log()).sum(-1)
    return loss + proposals - proposals.detach()


def quantile_regression(values: Callable[[Params, Tensor], Tensor], p: Params, t: Params, d: Data) -> Tensor:
    """QR-DQN with quantiles [batch, actions, n] that a network holds in its way."""
    following = values(t, torso(t, d.following))
    goal = backed_up(d, pick(following, following.mean(-1).argmax(-1)))
    return quantile_huber(pick(values(p, torso(p, d.seen)), d.action), midpoints(4), goal)


def nc_qr_dqn(p: Params, t: Params, d: Data) -> Tensor:
    def values(p: Params, features: Tensor) -> Tensor:
        found = outputs(p, ".head", features)
        logits, scale, shift = found[..., :4], found[..., 4:5], found[..., 5:]
        return softplus(scale) * torch.softmax(logits, -1).cumsum(-1) + shift

    return quantile_regression(values, p, t, d)


def spl_dqn(p: Params, t: Params, d: Data) -> Tensor:
    def values(p: Params, features: Tensor) -> Tensor:
        found = outputs(p, ".head", features)
        widths, heights = (1e-5 + (1 - 3e-5) * torch.softmax(found[..., i : i + 3], -1) for i in (0, 3))
        one = torch.ones(BATCH, ACTIONS, 1, dtype=torch.float64)
        slopes = torch.cat([one, softplus(found[..., 6:8]) + 1e-5, one], -1)
        scale, shift = found[..., 8:9].exp(), found[..., 9:]
        knots, floors = (torch.cat([0 * one, each.cumsum(-1)], -1) for each in (widths, heights))
        levels = midpoints(4).expand(BATCH, ACTIONS, 4)
        at = torch.searchsorted(knots[..., 1:-1].detach().contiguous(), levels.contiguous(), right=True)
        width, height = widths.gather(-1, at), scale * heights.gather(-1, at)
        left, right = slopes.gather(-1, at), slopes.gather(-1, at + 1)
        s, x = height / width, (levels - knots.gather(-1, at)) / width
        rise = height * (s * x**2 + left * x * (1 - x)) / (s + (left + right - 2 * s) * x * (1 - x))
        return shift + scale * floors.gather(-1, at) + rise

    return quantile_regression(values, p, t, d)


def ndqfn(p: Params, t: Params, d: Data) -> Tensor:
    grid = torch.tensor([0.001, 1 / 3, 2 / 3, 0.999], dtype=torch.float64)

    def on_grid(p: Params, features: Tensor) -> Tensor:
        embedded = relu(affine(p, ".head.embedding", cosines(grid, 3)))
        inputs = torch.cat([features[:, None] * embedded[1:], features[:, None] * (embedded[1:] - embedded[:-1])], -1)
        steps = relu(outputs(p, ".head.increments", inputs)[..., 0]).transpose(1, 2)
        return torch.cat([outputs(p, ".head.baseline", features), steps], -1).cumsum(-1)

    target_key, loss_key = jax.random.split(d.key)
    following = on_grid(t, torso(t, d.following))
    integral = torch.trapezoid(following, grid) + 0.001 * (following[..., 0] + following[..., -1])
    levels = drawn(jax.random.split(target_key)[1], 5)
    goal = backed_up(d, interpolated(levels, grid, pick(following, integral.argmax(-1))))
    levels = drawn(loss_key, 4)
    return quantile_huber(interpolated(levels, grid, pick(on_grid(p, torso(p, d.seen)), d.action)), levels, goal)


LAW = torch.tensor([-1 - 0.51 / 0.49 / 0.4, -1.0, 1.0, 1 + 0.51 / 0.49 / 0.4], dtype=torch.float64)
CHANCES = torch.tensor([0.2, 0.3, 0.3, 0.2], dtype=torch.float64)
"""Atoms of which ±1 are their own expectiles at the levels 0.255 and 0.745: what is imputed is this law itself.

At 0.255, 0.255 E(Z + 1)₊ = 0.745 E(−1 − Z)₊, where E(−1 − Z)₊ = 0.2 (c − 1) and E(Z + 1)₊ is one more; c is the last.
"""


def law_expectiles() -> np.ndarray:
    def gap(e: float, level: float) -> float:
        above = (CHANCES * (LAW - e).clamp(min=0)).sum()
        return float(level * above - (1 - level) * (above - (CHANCES * LAW).sum() + e))

    ends = (float(LAW[0]), float(LAW[-1]))
    return np.array([optimize.brentq(gap, *ends, args=(level,)) for level in np.linspace(0.01, 0.99, 5)])


SPREADS = (0.5, 1.0, 1.5)
"""How wide the distributions of the three actions are."""


def er_dqn(p: Params, t: Params, d: Data) -> Tensor:
    """The target network has expectiles of the law, moved by its features and stretched by `SPREADS`."""
    means = outputs(t, ".head", torso(t, d.following))[..., 2]
    best = means.argmax(-1)
    atoms = pick(means[..., None], best) + torch.tensor(SPREADS).double()[best, None] * LAW
    u = backed_up(d, atoms).detach()[:, None] - pick(outputs(p, ".head", torso(p, d.seen)), d.action)[..., None]
    levels = torch.linspace(0.01, 0.99, 5, dtype=torch.float64)[:, None]
    return ((levels - (u < 0).double()).abs() * u**2 * CHANCES).sum((1, 2))


def mmd_dqn(p: Params, t: Params, d: Data) -> Tensor:
    def kernel(x: Tensor, y: Tensor) -> Tensor:
        squares = (x[:, :, None] - y[:, None, :]) ** 2
        return sum((torch.exp(-squares / h) for h in range(1, 11)), torch.zeros(())).mean((1, 2))

    following = outputs(t, ".head", torso(t, d.following))
    y = backed_up(d, pick(following, following.mean(-1).argmax(-1))).detach()
    x = pick(outputs(p, ".head", torso(p, d.seen)), d.action)
    return kernel(x, x) - 2 * kernel(x, y) + kernel(y, y)


def cr_dqn(p: Params, t: Params, d: Data) -> Tensor:
    """∫ (F − G)² as a sum over what lies between neighbors among all values."""
    following = outputs(t, ".head", torso(t, d.following))
    y = backed_up(d, pick(following, following.mean(-1).argmax(-1))).detach()
    x = pick(outputs(p, ".head", torso(p, d.seen)), d.action)
    points, order = torch.cat([x, y], -1).sort(-1)
    jumps = torch.cat([torch.full((4,), 0.25), torch.full((4,), -0.25)])[order]
    return (jumps.cumsum(-1)[:, :-1] ** 2 * points.diff(dim=-1)).sum(-1)


def hl_gauss(p: Params, t: Params, d: Data) -> Tensor:
    atoms = torch.linspace(-2, 2, 7, dtype=torch.float64)
    q = (torch.softmax(outputs(t, ".head", torso(t, d.following)), -1) * atoms).sum(-1)
    goal = backed_up(d, q.max(-1, keepdim=True).values).clamp(-2, 2).detach()
    ends = torch.linspace(-2 - 1 / 3, 2 + 1 / 3, 8, dtype=torch.float64)
    below = torch.special.ndtr((ends - goal) / (0.75 * 2 / 3))
    probs = below.diff(dim=-1) / (below[:, -1:] - below[:, :1])
    return -(probs * pick(outputs(p, ".head", torso(p, d.seen)), d.action).log_softmax(-1)).sum(-1)


def bootstrapped(loss: Callable[[Tensor, Tensor], Tensor], p: Params, t: Params, d: Data) -> Tensor:
    """Three heads with double targets of their own; the features get a third of the gradient."""
    features, ahead, there = torso(p, d.seen), torso(p, d.following), torso(t, d.following)
    if features.requires_grad:
        features.register_hook(lambda gradient: gradient / 3)
    losses = []
    for k in range(3):
        head = f".head.heads[{k}]"
        best = outputs(p, head, ahead).mean(-1).argmax(-1)
        goal = backed_up(d, pick(outputs(t, head, there), best)).detach()
        losses.append(d.mask[:, k] * loss(pick(outputs(p, head, features), d.action), goal))
    return torch.stack(losses).sum(0)


def m_iqn(p: Params, t: Params, d: Data) -> Tensor:
    target_key, loss_key = jax.random.split(d.key)
    here_key, action_key, target_key = jax.random.split(target_key, 3)

    def log_policy(seen: Tensor, key: Any) -> Tensor:
        q = implicit(t, ".head", torso(t, seen), drawn(key, 3)).mean(-1)
        return torch.log_softmax(q / 0.03, -1)

    taken = 0.03 * log_policy(d.seen, here_key)[torch.arange(BATCH), d.action]
    log_probs = log_policy(d.following, action_key)[..., None]
    following = implicit(t, ".head", torso(t, d.following), drawn(target_key, 5))
    soft = (log_probs.exp() * (following - 0.03 * log_probs)).sum(1)
    goal = backed_up(d, soft) + 0.9 * taken.clamp(-1, 0)[:, None]
    levels = drawn(loss_key, 4)
    return quantile_huber(pick(implicit(p, ".head", torso(p, d.seen), levels), d.action), levels, goal)


LOSSES: dict[str, Callable[[Params, Params, Data], Tensor]] = {
    "fqf": fqf,
    "nc-qr-dqn": nc_qr_dqn,
    "ndqfn": ndqfn,
    "er-dqn": er_dqn,
    "mmd-dqn": mmd_dqn,
    "spl-dqn": spl_dqn,
    "cr-dqn": cr_dqn,
    "hl-gauss": hl_gauss,
    "bootstrapped-dqn": partial(bootstrapped, lambda values, goal: huber(goal - values)[:, 0]),
    "bootstrapped-qr-dqn": partial(bootstrapped, lambda values, goal: quantile_huber(values, midpoints(4), goal)),
    "m-iqn": m_iqn,
}
"""From parameters, those of the target network and a batch to the loss of each transition."""
