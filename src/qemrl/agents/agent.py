"""What a loop knows of an agent: pure functions, and state that is one pytree of arrays."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int

from qemrl.estimators import Statistic
from qemrl.networks.layers import Key
from qemrl.types import Actions, Array, Batch, ReturnDist

NEVER = 2**30
"""A number of updates that no run reaches: between refreshes, where there is nothing to refresh."""


class AgentState(NamedTuple):
    """All that an agent learns."""

    params: Any
    """What acts, and is updated."""

    optimizer: Any
    """What only learning needs and updates change, such as the optimizer's state."""

    target: Any
    """What updates need and leave alone, such as a target network; only `refresh` changes it.

    Kept apart so that loops need not carry it through their updates, which would mean a copy each time.
    """


class View(NamedTuple):
    """What an agent sees in environments side by side."""

    observation: Any
    """[envs, ...]."""

    mask: Bool[Array, "envs actions"] | None
    first: Bool[Array, " envs"]
    """Whether an episode begins here."""


class Update(NamedTuple):
    """What an update gives, apart from the new state."""

    loss: Float[Array, ""]
    priorities: Float[Array, " batch"]
    """How surprising each transition was, for prioritized replay."""


class Agent(NamedTuple):
    """An agent: pure functions that both loops compile, and the loop's settings.

    Counters are arguments and not part of the state. Seeds that are learned side by side share them, and so a branch
    on a counter stays a branch when everything else is mapped over seeds.
    """

    init: Callable[[Key], AgentState]
    init_actor: Callable[[int], Any]
    """From the number of environments to the state that acting keeps."""

    act: Callable[[Any, Any, View, Int[Array, ""], Key, bool], tuple[Actions, Any]]
    """(params, acting state, view, step, key, evaluating) to actions and the acting state."""

    intrinsic_reward: Callable[[Any], Float[Array, " envs"] | None]
    """From the acting state to what exploration adds to the rewards that the last actions are learned with, or None."""

    update: Callable[[AgentState, Batch, Key, Int[Array, ""]], tuple[Any, Any, Update]]
    """(state, batch, key, number of updates before) to params and learning after it."""

    refresh_target: Callable[[AgentState], Any]
    """From the state to what is frozen from here on."""

    target_update_every: int
    """How many updates there are between refreshes."""

    predict_distribution: Callable[..., ReturnDist]
    """(params, observations, actions = None) to return distributions [batch, members, actions, n], without randomness.

    They are those of all actions; of continuous ones, and where actions are given, those of one action, which without
    a given one is the action that the policy prefers.
    """

    q_values: Callable[[Any, Any], Float[Array, "batch actions"]]
    """(params, observations) to the estimates of Q for the same actions, without randomness."""

    greedy_action: Callable[[Any, Any, Bool[Array, "batch actions"] | None, Statistic | None], Actions]
    """(params, observations, mask, risk measure in the place of the estimator) to the best actions, not random."""

    metrics: Callable[[Any, Any], dict[str, Float[Array, ""]]]
    """(params, observations) to numbers worth logging, by tag."""
