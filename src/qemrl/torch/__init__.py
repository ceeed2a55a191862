"""The estimators as PyTorch modules, for agents that exist: three lines put QEM into a QR-DQN (docs/pytorch.md).

At fixed levels a module holds its weights, and a call is one product:

    estimate = qemrl.torch.QEM(51)      # once, where the network is made; 51 quantiles at midpoints
    q = estimate(quantiles)             # (batch, actions, 51) to (batch, actions), in the place of quantiles.mean(-1)

At random levels, as in IQN, they come with every call: `qemrl.torch.ImplicitQEM()(quantiles, levels)`.
"""

from qemrl.extras import require_extra

require_extra("torch", "qemrl.torch")

from qemrl.torch.modules import QEM, Implicit, ImplicitQEM, Linear, Mean, MeanStd, left_truncated_std, make_module

__all__ = ["QEM", "Implicit", "ImplicitQEM", "Linear", "Mean", "MeanStd", "left_truncated_std", "make_module"]
