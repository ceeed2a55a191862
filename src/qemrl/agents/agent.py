"""What a loop knows of an agent: pure functions, and state that is one pytree of arrays."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int

from qemrl.estimators import Statistic
from qemrl.networks.layers import Key
from qemrl.types import Actions, Array, Batch, ReturnDist

NEVER = 2**30
"""A number of updates that no run reaches: the interval where there is no target to refresh."""


class AgentState(NamedTuple):
    """All that an agent learns."""

    params: Any
    """What acts, and is updated."""

    optimizer: Any
    """What only learning needs and updates change, such as the optimizer's state."""

    target: Any
    """What updates need and leave alone, such as a target network; only `refresh_target` changes it.

    Kept apart so that loops need not carry it through their updates, which would mean a copy each time.
    """


class View(NamedTuple):
    """What an agent sees in each of its environments."""

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


@runtime_checkable
class Agent(Protocol):
    """All that a loop knows of an agent: pure functions, which both loops compile.

    Counters are arguments and not part of the state. Seeds that are learned at once share them, and so a branch on a
    counter stays a branch when everything else is mapped over seeds.
    """

    @property
    def target_update_every(self) -> int:
        """How many updates there are between calls of `refresh_target`."""
        ...

    def init(self, key: Key) -> AgentState:
        """The state before the first update."""
        ...

    def init_actor(self, num_envs: int) -> Any:
        """The state that acting keeps for this many environments."""
        ...

    def act(
        self, params: Any, actor: Any, view: View, step: Int[Array, ""], key: Key, evaluating: bool
    ) -> tuple[Actions, Any]:
        """Actions, and the actor state from here on."""
        ...

    def intrinsic_reward(self, actor: Any) -> Float[Array, " envs"] | None:
        """What exploration adds to the rewards that the last actions are learned with, or None."""
        ...

    def member_mask(self, num_envs: int, key: Key) -> Bool[Array, "envs members"] | None:
        """Which members of an ensemble are to learn from the next transitions; None where all always do."""
        ...

    def update(self, state: AgentState, batch: Batch, key: Key, updates: Int[Array, ""]) -> tuple[Any, Any, Update]:
        """Params and optimizer after one more update than there were before."""
        ...

    def refresh_target(self, state: AgentState) -> Any:
        """The target from here on."""
        ...


@runtime_checkable
class InspectableAgent(Agent, Protocol):
    """An agent that can be asked for its predictions, which hold no randomness."""

    def predict_distribution(self, params: Any, observation: Any, actions: Any = None) -> ReturnDist:
        """Return distributions [batch, members, actions, n] of all actions.

        Of continuous ones, and where actions are given, those of one action, which without a given one is the action
        that the policy prefers.
        """
        ...

    def q_values(self, params: Any, observation: Any) -> Float[Array, "batch actions"]:
        """The estimates of Q for the same actions."""
        ...

    def greedy_action(
        self,
        params: Any,
        observation: Any,
        mask: Bool[Array, "batch actions"] | None = None,
        risk: Statistic | None = None,
    ) -> Actions:
        """The best actions, by a risk measure in the place of the estimator if one is given."""
        ...

    def metrics(self, params: Any, observation: Any) -> dict[str, Float[Array, ""]]:
        """Numbers worth logging, by tag."""
        ...

    def scheduled(self, step: Int[Array, ""], updates: Int[Array, ""]) -> dict[str, float | Float[Array, ""]]:
        """What depends on these counts alone, by tag: as it is for the next step and the next update."""
        ...
