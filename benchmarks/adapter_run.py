# pyright: reportMissingImports=false, reportMissingModuleSource=false
"""A run of one of the peers' agents with an estimator of ours: `python adapter_run.py ARM --seed S …`, a line of JSON.

It runs where the peer is, with `qemrl` on the path, and learns with the settings of `peer_learning`.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from peer_learning import iqn_cartpole, qr_dqn_cartpole, read_arguments

STATES, DRAWS, EXACT = 200, 200, 4_096
"""Observations from the replay, draws of the levels at each, and levels that the true Q is the mean at."""


def learn_sb3(estimator: Any, *run: int) -> dict[str, Any]:
    """QR-DQN of sb3-contrib with an estimator; None stands for the parent."""
    if estimator is None:
        return qr_dqn_cartpole(*run)
    from qemrl.integrations.sb3 import QEMQRDQN

    return qr_dqn_cartpole(*run, kind=QEMQRDQN, estimator=estimator)


def learn_tianshou(network: str | None, estimator: Any, *run: int) -> dict[str, Any]:
    """IQN of tianshou with a network of ours, an estimator, or neither; and the error of Q from the draw of levels."""
    from qemrl.integrations import tianshou

    errors: dict[str, float] = {}
    curve = iqn_cartpole(
        *run,
        network=None if network is None else getattr(tianshou, network),
        policy_kind=None if estimator is None else partial(tianshou.QEMIQNPolicy, estimator=estimator),
        look=lambda policy, buffer: errors.update(measure(policy, buffer, estimator)),
    )
    return {**curve, **errors}


def measure(policy: Any, buffer: Any, estimator: Any) -> dict[str, float]:
    """The squared error of Q from the draw of 32 levels, as this agent draws and estimates, and by the plain mean.

    Both are means over observations, actions and draws, in units of the variance of Q over observations; and the same
    for the differences between actions, which are all that an action depends on, in units of their mean square.
    """
    import numpy as np
    import torch

    import qemrl.torch
    from qemrl.integrations.tianshou import StratifiedQuantileNetwork, stratify

    places = np.random.default_rng(0).integers(len(buffer), size=STATES)
    observations = torch.as_tensor(buffer.obs[places], dtype=torch.float32)
    model = policy.model
    embedding = getattr(model.embed_model, "embedding", model.embed_model)

    def quantiles(levels: torch.Tensor) -> torch.Tensor:
        """(states, actions, n) at levels (states, n)."""
        features, _ = model.preprocess(observations)
        joined = features[:, None] * embedding(levels)
        return model.last(joined.flatten(0, 1)).view(STATES, levels.shape[1], -1).transpose(1, 2)

    own = qemrl.torch.make_module(qemrl.EmpiricalMean() if estimator is None else estimator)
    plain = qemrl.torch.make_module(qemrl.EmpiricalMean())
    with torch.no_grad():
        middles = (torch.arange(EXACT) + 0.5) / EXACT
        truth = quantiles(middles.expand(STATES, -1)).mean(-1)
        generator = torch.Generator().manual_seed(0)
        found: dict[str, list[torch.Tensor]] = {"own": [], "plain": []}
        for _ in range(DRAWS):
            drawn = torch.rand(STATES, 32, generator=generator)
            levels = stratify(drawn) if isinstance(model, StratifiedQuantileNetwork) else drawn
            found["own"].append(own(quantiles(levels), levels[:, None]) - truth)
            found["plain"].append(plain(quantiles(drawn), drawn[:, None]) - truth)
    unit, gap_unit = truth.var().item(), (truth[:, 1] - truth[:, 0]).square().mean().item()
    errors = {name: torch.stack(each) for name, each in found.items()}
    return {
        **{f"error_{name}": each.square().mean().item() / unit for name, each in errors.items()},
        **{
            f"gap_error_{name}": (each[..., 1] - each[..., 0]).square().mean().item() / gap_unit
            for name, each in errors.items()
        },
    }


def arms() -> dict[str, Callable[..., dict[str, Any]]]:
    """What can be run, by name."""
    import qemrl

    return {
        "sb3-mean": partial(learn_sb3, None),
        "sb3-qem": partial(learn_sb3, qemrl.QEM()),
        "tianshou-plain": partial(learn_tianshou, None, None),
        "tianshou-stratified": partial(learn_tianshou, "StratifiedQuantileNetwork", None),
        "tianshou-qem": partial(learn_tianshou, None, qemrl.QEM(variance="auto")),
    }


def main() -> None:
    """Learn by one arm and print what came of it."""
    import torch

    torch.set_num_threads(1)
    known = arms()
    given = read_arguments(tuple(known), __doc__)
    print(json.dumps(known[given.task](given.seed, given.steps, given.every, given.episodes)))


if __name__ == "__main__":
    main()
