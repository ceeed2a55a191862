"""The names of presets, and of the families of environments that they have settings for; no JAX is needed for them."""

import re
from typing import Literal, get_args

VALUE_AGENTS: dict[str, str] = {
    "dqn": "expected return only",
    "c51": "probabilities of 51 fixed atoms",
    "qr-dqn": "fixed quantiles, their mean is Q",
    "qem-dqn": "fixed quantiles, Q by QEM with the paper's V on Atari",
    "iqn": "quantiles at random levels, their mean is Q",
    "iqem-dqn": "quantiles at random levels, Q by QEM",
    "qr-dqn-dltv": "as qr-dqn, explores by DLTV, the variance above the median",
    "qem-dqn-dltv": "as qem-dqn, explores by DLTV",
    "qem-dqn-var": "as qem-dqn, explores by QEM's standard deviation",
    "m-iqn": "as iqn, with Munchausen rewards and soft targets",
    "fqf": "quantiles at levels that a second network proposes",
    "fqf-uniform": "as fqf, with levels that stay uniform",
    "nc-qr-dqn": "fixed quantiles that cannot cross",
    "ndqfn": "increments on a grid of levels, interpolated",
    "spl-dqn": "a monotone spline as the quantile function",
    "er-dqn": "expectiles, with imputed targets",
    "er-dqn-naive": "as er-dqn, without imputation",
    "mmd-dqn": "particles, by maximum mean discrepancy",
    "cr-dqn": "fixed quantiles, by the Cramér distance",
    "hl-gauss": "C51's network as a classifier of Q",
    "bootstrapped-dqn": "ten heads, one of which acts for an episode",
    "bootstrapped-qr-dqn": "as bootstrapped-dqn, with fixed quantiles",
}
"""For discrete actions."""

ACTOR_CRITICS: dict[str, str] = {
    "sac": "expected return only, two critics",
    "td3": "expected return only, a deterministic policy",
    "dsac": "fixed quantiles, two critics with the paper's network",
    "dsac-iqn": "quantiles at random levels, two critics with the paper's network",
    "tqc": "fixed quantiles of five critics, pooled and truncated",
    "qem-dsac": "as dsac, the policy's Q by QEM with the paper's V on MuJoCo",
    "qem-dsac-iqn": "as dsac-iqn, the policy's Q by QEM",
    "dsac-mlp": "as dsac, with plain critics that are some 20 times faster",
    "qem-dsac-mlp": "as qem-dsac, with plain critics that are some 20 times faster",
    "dsac-fqf": "as dsac, quantiles at proposed levels",
}
"""For continuous actions."""

SUMMARIES: dict[str, str] = {**VALUE_AGENTS, **ACTOR_CRITICS}
"""All presets, in the order in which they are listed."""

MuJoCoTask = Literal["ant", "half-cheetah", "hopper", "walker2d", "swimmer", "humanoid"]
"""The tasks of the paper's table 3, each with its own settings."""

EnvFamily = Literal["atari", "minatar", "classic", MuJoCoTask]
"""Whose settings an environment gets; `classic` is everything else."""

SETTINGS: dict[str, str] = {
    "one-machine": "Atari: 3-step returns, a replay of 200,000 and a faster start, to learn Pong on one core in hours",
    "revisiting-rainbow": "MinAtar: the network and the settings of Obando-Ceron and Castro (2021)",
    "tianshou": "MuJoCo: a learning rate of 1e-3, as in tianshou's published curves",
}
"""Sets of settings other than a family's own, for `--settings`."""

MUJOCO_TASKS: tuple[MuJoCoTask, ...] = get_args(MuJoCoTask)


def mujoco_task(env: str) -> MuJoCoTask | None:
    """The task that an id such as HalfCheetah-v5 names, in any of its versions; None if it names none."""
    match = re.fullmatch(r"(?:.*:)?([A-Z]\w+)-v\d+", env)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", match.group(1)).lower() if match else ""
    return next((task for task in MUJOCO_TASKS if task == name), None)
