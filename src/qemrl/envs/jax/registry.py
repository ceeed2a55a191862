"""The JAX environments by id."""

import difflib
from collections.abc import Callable
from functools import lru_cache, partial

from qemrl.envs.jax.classic_control import make_cartpole, make_mountain_car, make_pendulum
from qemrl.envs.jax.env import JaxEnv
from qemrl.envs.jax.exploration_tasks import make_catch, make_chain, make_deep_sea
from qemrl.envs.jax.minatar import MINATAR_GAMES, make_minatar, make_sparse_minatar
from qemrl.envs.jax.probes import BOX_PROBES, PROBES

PREFIXES = ("minatar/", "jax/", "probe/")
"""What the id of a JAX environment begins with; every other id is Gymnasium's."""

DEEP_SEA_SIZES = range(5, 31)
CHAIN_SIZES = (10, 20, 30, 50, 100)

JAX_ENVS: dict[str, Callable[[], JaxEnv]] = {
    **{f"minatar/{game}": partial(make_minatar, game) for game in MINATAR_GAMES},
    **{f"minatar/{game}-sparse": partial(make_sparse_minatar, game) for game in MINATAR_GAMES},
    "jax/cartpole": make_cartpole,
    "jax/catch": make_catch,
    "jax/mountain-car": make_mountain_car,
    **{f"jax/deep-sea-{size}": partial(make_deep_sea, size, False) for size in DEEP_SEA_SIZES},
    **{f"jax/deep-sea-stochastic-{size}": partial(make_deep_sea, size, True) for size in DEEP_SEA_SIZES},
    **{f"jax/chain-{size}": partial(make_chain, size) for size in CHAIN_SIZES},
    "jax/pendulum": make_pendulum,
    **{f"probe/{name}": probe.make for name, probe in (PROBES | BOX_PROBES).items()},
}
"""What makes each JAX environment, by id."""


def is_jax_env(env_id: str) -> bool:
    """Whether an id means a JAX environment, told by how it begins alone."""
    return env_id.startswith(PREFIXES)


@lru_cache(maxsize=64)
def make_jax_env(env_id: str) -> JaxEnv:
    """The JAX environment of an id.

    The same object for the same id, so that programs that were compiled for it are found again.
    """
    factory = JAX_ENVS.get(env_id)
    if factory is None:
        close = difflib.get_close_matches(env_id, JAX_ENVS, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(JAX_ENVS)}"
        raise ValueError(f"there is no JAX environment {env_id!r}: {hint}")
    return factory()
