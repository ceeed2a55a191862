"""All probes of a kind in one environment, which begins a random one with each episode and shows which it is."""

import jax
import jax.numpy as jnp
import numpy as np

from qemrl.envs.jax.env import JaxEnv, Outcome
from qemrl.envs.jax.probes import BOX_PROBES, PROBES
from qemrl.envs.jax.registry import make_jax_env
from qemrl.types import ActionBox, EnvSpec

ALL = PROBES | BOX_PROBES


def mixed_probes(names: tuple[str, ...]) -> JaxEnv:
    """An environment whose episodes are those of one of the probes, by chance; the observation also says of which.

    Its box is the widest of theirs, which fills that of each.
    """
    envs = [make_jax_env(f"probe/{name}") for name in names]
    count, num_actions, box = len(envs), max(env.spec.num_actions for env in envs), common_box(names)

    def show(number, observation):
        return jnp.concatenate([observation, jax.nn.one_hot(number, count, dtype=jnp.float32)])

    def own(env, action):
        if box is None:
            return jnp.minimum(action, env.spec.num_actions - 1)
        return moved(action, box, env.spec.box)

    def reset(key):
        number_key, *keys = jax.random.split(key, count + 1)
        number = jax.random.randint(number_key, (), 0, count, jnp.int32)
        starts = [env.reset(each) for env, each in zip(envs, keys, strict=True)]
        return (number, tuple(state for state, _ in starts)), show(number, jnp.stack([o for _, o in starts])[number])

    def step(state, action, key):
        number, states = state
        outcomes = [env.step(each, own(env, action), key) for env, each in zip(envs, states, strict=True)]
        rest = jax.tree.map(lambda *each: jnp.stack(each)[number], *(outcome[1:] for outcome in outcomes))
        observation, reward, terminated, truncated = rest
        following = (number, tuple(outcome.state for outcome in outcomes))
        return Outcome(following, show(number, observation), reward, terminated, truncated)

    def mask(state):
        number, states = state
        rows = []
        for env, each in zip(envs, states, strict=True):
            allowed = env.mask(each)
            allowed = jnp.ones(env.spec.num_actions, bool) if allowed is None else allowed
            rows.append(jnp.concatenate([allowed, jnp.zeros(num_actions - env.spec.num_actions, bool)]))
        return jnp.stack(rows)[number]

    size, name = 1 + count, f"mixed/{'-'.join(names)}"
    ends = (-1.0,) * size, (1.0,) * size
    if box is not None:
        spec = EnvSpec(name, (size,), "float32", 0, observation_low=ends[0], observation_high=ends[1], box=box)
        return JaxEnv(spec, reset, step, envs[0].draw)
    spec = EnvSpec(name, (size,), "float32", num_actions, True, observation_low=ends[0], observation_high=ends[1])
    return JaxEnv(spec, reset, step, envs[0].draw, jax.jit(mask))


def common_box(names: tuple[str, ...]) -> ActionBox | None:
    """The widest box of the probes; None where actions are discrete."""
    boxes = [box for name in names if (box := box_of(name)) is not None]
    return max(boxes, key=lambda box: box.high[0] - box.low[0], default=None)


def box_of(name: str) -> ActionBox | None:
    """The probe's own box."""
    return make_jax_env(f"probe/{name}").spec.box


def moved(action, source: ActionBox, goal: ActionBox):
    """The action at the same place in another box."""
    share = (goal.high[0] - goal.low[0]) / (source.high[0] - source.low[0])
    return goal.low[0] + share * (action - source.low[0])


def shown(names: tuple[str, ...], probe: str) -> np.ndarray:
    """The observations of a probe as the mixed environment shows them."""
    which = np.eye(len(names), dtype=np.float32)[names.index(probe)]
    rows = [np.concatenate([[observation], which]) for observation in ALL[probe].observations]
    return np.stack(rows).astype(np.float32)
