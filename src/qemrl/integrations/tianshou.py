# pyright: reportMissingImports=false
"""Policies of tianshou for QR-DQN, IQN and FQF in which Q is by any estimator of ours (tianshou 2, extra `tianshou`).

Beside them there is a network for IQN whose levels are stratified, for the plain mean or any other estimator.

    from qemrl.integrations.tianshou import QEMIQNPolicy

    policy = QEMIQNPolicy(model=network, action_space=env.action_space, estimator=qemrl.QEM(variance="auto"))
    agent = tianshou.algorithm.IQN(policy=policy, optim=..., num_quantiles=32, target_update_freq=500)

tianshou's agents choose the action of the target with their policy, so the estimator is in both places.
"""

from qemrl.extras import require_extra

require_extra("tianshou", "qemrl.integrations.tianshou")

from typing import Any

from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.fqf import FQFPolicy
from tianshou.algorithm.modelfree.iqn import IQNPolicy
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.data import to_numpy
from tianshou.utils.net.discrete import ImplicitQuantileNetwork
from torch import Tensor, arange, nn

import qemrl.torch
from qemrl.estimators import QEM, Statistic

DEFAULT = QEM()


class QEMQRDQNPolicy(QRDQNPolicy):
    """QR-DQN's policy at midpoints."""

    def __init__(self, *, num_quantiles: int, estimator: Statistic = DEFAULT, **options: Any) -> None:
        """A policy for a network of so many quantiles; `options` are the parent's."""
        super().__init__(**options)
        self.estimate = qemrl.torch.make_module(estimator, num_quantiles)

    def compute_q_value(self, logits: Tensor, mask: Any) -> Tensor:
        """Q (batch, actions) of quantiles (batch, actions, n)."""
        return DiscreteQLearningPolicy.compute_q_value(self, self.estimate(logits), mask)


class QEMIQNPolicy(IQNPolicy):
    """IQN's policy: the levels are those that the network has drawn."""

    def __init__(self, *, estimator: Statistic = DEFAULT, **options: Any) -> None:
        """`options` are the parent's."""
        super().__init__(**options)
        self.estimate = qemrl.torch.make_module(estimator)

    def forward(self, batch: Any, state: Any = None, model: Any = None, **options: Any) -> Any:
        """What the parent gives, with the action that is greedy by the estimator."""
        result = super().forward(batch, state, model, **options)
        q = self.estimate(result.logits, result.taus[:, None, :])
        return _choose(self, result, q, batch)


class StratifiedQuantileNetwork(ImplicitQuantileNetwork):
    """IQN's network at stratified levels: of n, one lies in each n-th of (0, 1).

    The parent draws independent levels u_i; here the network reads (i + u_i)/n in their place, in learning and acting.
    """

    def __init__(self, **options: Any) -> None:
        """`options` are the parent's."""
        super().__init__(**options)
        self.embed_model = _AtStratifiedLevels(self.embed_model)

    def forward(self, obs: Any, sample_size: int, **options: Any) -> Any:
        """Quantiles (batch, actions, n) with their levels (batch, n), and the state."""
        (values, drawn), hidden = super().forward(obs, sample_size, **options)
        return (values, stratify(drawn)), hidden


class _AtStratifiedLevels(nn.Module):
    """An embedding of levels, of which it is told draws in [0, 1)."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, drawn: Tensor) -> Tensor:
        return self.embedding(stratify(drawn))


def stratify(drawn: Tensor) -> Tensor:
    """Levels (i + u_i)/n (..., n) of independent draws u (..., n) from [0, 1)."""
    count = drawn.shape[-1]
    return (arange(count, dtype=drawn.dtype, device=drawn.device) + drawn) / count


class QEMFQFPolicy(FQFPolicy):
    """FQF's policy: levels are the middles of the proposed fractions, which stand for their widths."""

    def __init__(self, *, estimator: Statistic = DEFAULT, **options: Any) -> None:
        """`options` are the parent's."""
        super().__init__(**options)
        self.estimate = qemrl.torch.make_module(estimator)

    def forward(self, batch: Any, state: Any = None, model: Any = None, fractions: Any = None, **options: Any) -> Any:
        """What the parent gives, with the action that is greedy by the estimator."""
        result = super().forward(batch, state, model, fractions, **options)
        ends = result.fractions.taus.detach()
        levels, widths = result.fractions.tau_hats.detach(), ends[:, 1:] - ends[:, :-1]
        q = self.estimate(result.logits, levels[:, None, :], widths[:, None, :])
        return _choose(self, result, q, batch)


def _choose(policy: Any, result: Any, q: Tensor, batch: Any) -> Any:
    masked = DiscreteQLearningPolicy.compute_q_value(policy, q, getattr(batch.obs, "mask", None))
    result.act = to_numpy(masked.argmax(dim=1))
    return result
