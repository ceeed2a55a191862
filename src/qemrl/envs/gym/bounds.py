"""Where observations usually lie, for environments that leave their bounds open."""

import math

_CARTPOLE = (2.4, 5.0, math.pi / 12, 2 * math.pi)

USUAL_BOUNDS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    env_id: (tuple(-bound for bound in _CARTPOLE), _CARTPOLE)
    for env_id in ("CartPole-v0", "CartPole-v1", "jax/cartpole", "qemrl/cartpole-v0")
}
"""Lower and upper bounds by id; observations may go beyond them. CartPole's are those of Dopamine."""
