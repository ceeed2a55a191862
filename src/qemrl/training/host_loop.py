"""The host loop: Gymnasium environments and NumPy replay around compiled acting and learning.

The environments step while the device learns: an iteration hands its updates to the device first, which works on
them while the host steps with the parameters from before (see `schedule`).
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from qemrl.agents.agent import AgentState, InspectableAgent, View
from qemrl.envs.gym.host_envs import HostEnvs
from qemrl.envs.gym.spaces import NonFiniteError
from qemrl.replay.host import HostReplay
from qemrl.training.evaluation import Played, make_act, play_in_host_envs
from qemrl.training.pytrees import flatten, unflatten
from qemrl.training.schedule import Accumulator, Keys, LoopSettings, Record, Stop, never, read_schedules
from qemrl.types import Actions, Batch, Step

BITS_AT_ONCE = 256
"""For how many updates the random bits of sampling are drawn in one go."""


class HostLoop:
    """A run of one seed of an agent on Gymnasium environments."""

    def __init__(
        self,
        agent: InspectableAgent,
        envs: HostEnvs,
        replay: HostReplay,
        settings: LoopSettings,
        seed: int,
        make_evaluation_envs: Callable[[int], HostEnvs],
    ) -> None:
        self.agent, self.envs, self.replay, self.settings = agent, envs, replay, settings
        self.schedule = schedule = settings.schedule
        self.make_evaluation_envs = make_evaluation_envs
        self._evaluation_envs: HostEnvs | None = None
        self.seed = seed
        self.keys = Keys.from_seed(seed)
        self.vector_steps = 0
        self.agent_state = jax.jit(agent.init)(self.keys.init)
        self.actor = agent.init_actor(schedule.num_envs)
        self.accumulator = Accumulator.empty()
        self.episodes, self.return_sum, self.length_sum = 0, 0.0, 0
        self.returns = np.zeros(schedule.num_envs, np.float64)
        self.lengths = np.zeros(schedule.num_envs, np.int64)
        self.observation, self.mask = envs.reset(seed)
        self.first = np.ones(schedule.num_envs, bool)
        self._last: Step | None = None
        self._bits: tuple[int, Any] = (-1, None)
        # The actor state can be large, as visit counts are: it is updated in place.
        self._act = jax.jit(self._choose, donate_argnums=1)
        self._act_in_evaluation = make_act(agent, evaluating=True)
        self._draw_member_mask = None
        if agent.member_mask(schedule.num_envs, self.keys.act) is not None:
            self._draw_member_mask = jax.jit(
                lambda count: agent.member_mask(schedule.num_envs, self.keys.mask_key(count))
            )
        # Parameters are not donated: acting continues with the old ones.
        self._learn = jax.jit(self._update, donate_argnums=(0, 1))
        self._draw = jax.jit(jax.vmap(lambda updates: self.keys.bits(updates, settings.batch_size)))
        self._metrics = jax.jit(agent.metrics)

    @property
    def step(self) -> int:
        """Agent steps so far."""
        return self.vector_steps * self.schedule.num_envs

    @property
    def agent_state(self) -> AgentState:
        """All that the agent has learned."""
        return AgentState(*(jax.tree.unflatten(*part) for part in zip(self._structures, self._leaves, strict=True)))

    @agent_state.setter
    def agent_state(self, state: AgentState) -> None:
        # Compiled functions are called with leaves: taking modules apart at each call would show on small networks.
        self._leaves = AgentState(*(jax.tree.leaves(part) for part in state))
        self._structures = AgentState(*(jax.tree.structure(part) for part in state))

    def advance(self, until: int, evaluate: bool, stop: Stop = never, keep_sums: bool = False) -> Record | None:
        """Run to `until` steps and give a record, or None if `stop` asked to stop before.

        Sums start anew with each record, unless they are to be kept for the next one.
        """
        while self.step < until:
            if stop():
                return None
            self._iterate()
        record = {"step": self.step, "seed": self.seed, **self._summarize()}
        if evaluate:
            record |= self._evaluate().as_record()
        if not keep_sums:
            self.accumulator = Accumulator.empty()
            self.episodes, self.return_sum, self.length_sum = 0, 0.0, 0
        return record

    def set_evaluation_episodes(self, episodes: int) -> None:
        """Play so many episodes in evaluations from now on."""
        if episodes != self.settings.evaluation_episodes and self._evaluation_envs is not None:
            self._evaluation_envs.close()
            self._evaluation_envs = None
        self.settings = self.settings._replace(evaluation_episodes=episodes)

    def param_arrays(self) -> dict[str, np.ndarray]:
        """The parameters alone, under the names that `arrays` gives them."""
        only = flatten((AgentState(self.agent_state.params, None, None), None, None))
        return {f"agent/{name}": array for name, array in only.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """All that changes, for a checkpoint."""
        parts: dict[str, Mapping[str, np.ndarray]] = {
            "agent": flatten((self.agent_state, self.actor, self.accumulator)),
            "replay": self.replay.state(),
            "envs": self.envs.state(),
            "episodes": {
                "first": self.first,
                "returns": self.returns,
                "lengths": self.lengths,
                "vector_steps": np.asarray(self.vector_steps),
                "episodes": np.asarray(self.episodes),
                "return_sum": np.asarray(self.return_sum),
                "length_sum": np.asarray(self.length_sum),
            },
        }
        return {f"{part}/{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> list[str]:
        """Go on exactly from where `arrays` were taken; returns a message for everything that could not be restored."""
        parts: dict[str, dict[str, np.ndarray]] = {"agent": {}, "replay": {}, "envs": {}, "episodes": {}}
        for name, array in arrays.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = array
        self.agent_state, self.actor, self.accumulator = unflatten(
            (self.agent_state, self.actor, self.accumulator), parts["agent"]
        )
        self.replay.restore(parts["replay"])
        episodes = parts["episodes"]
        self.first, self.returns = episodes["first"].copy(), episodes["returns"].copy()
        self.lengths, self.vector_steps = episodes["lengths"].copy(), int(episodes["vector_steps"])
        self.episodes, self.return_sum = int(episodes["episodes"]), float(episodes["return_sum"])
        self.length_sum = int(episodes["length_sum"])
        lost = self.envs.restore(parts["envs"])
        self.observation, self.mask = self.envs.observation, self.envs.mask
        new = self.envs.state()["episode"] != parts["envs"]["episode"]
        if new.any():  # the episodes there were lost: what was stored of them must not run on into the new ones
            self.replay.end_episodes(new)
            self.first[new], self.returns[new], self.lengths[new] = True, 0, 0
        return lost

    def close(self) -> None:
        """Close all environments."""
        self.envs.close()
        if self._evaluation_envs is not None:
            self._evaluation_envs.close()

    def _iterate(self) -> None:
        params, sampled = self._leaves.params, []
        if self.step >= self.schedule.first_update:
            updates = self.schedule.updates_until(self.step)
            for number in range(updates, updates + self.schedule.updates):
                if number and number % self.agent.target_update_every == 0:
                    self.agent_state = self.agent_state._replace(target=self.agent.refresh_target(self.agent_state))
                batch, indices = self.replay.sample(self._sampling_bits(number))
                leaves = self._leaves
                new_params, optimizer, self.accumulator, priorities = self._learn(
                    leaves.optimizer,
                    self.accumulator,
                    leaves.params,
                    leaves.target,
                    batch,
                    np.int32(number),
                    np.int32(self.step),
                )
                self._leaves = AgentState(new_params, optimizer, leaves.target)
                sampled.append((indices, priorities))
        for _ in range(self.schedule.vector_steps):
            self._step(params)
        if self.replay.config.prioritized:
            for indices, priorities in sampled:
                if not np.isfinite(priorities).all():
                    raise FloatingPointError(f"seed {self.seed}, step {self.step}: the loss is not finite")
                self.replay.update_priorities(indices, np.asarray(priorities))

    def _step(self, params: list[Array]) -> None:
        view = View(self.observation, self.mask, self.first)
        actions, self.actor = self._act(params, self.actor, view, np.int32(self.vector_steps))
        actions = np.asarray(actions)
        with self._locate_errors():
            result = self.envs.step(actions)
        reward = np.clip(result.reward, -1, 1) if self.settings.clip_rewards else result.reward
        bonus = self.agent.intrinsic_reward(self.actor)
        reward = reward if bonus is None else reward + np.asarray(bonus)
        step = Step(
            self.observation,
            actions,
            reward,
            result.terminated,
            result.truncated,
            result.next_observation,
            result.next_mask,
            None if self._draw_member_mask is None else np.asarray(self._draw_member_mask(self.vector_steps)),
        )
        self.replay.add(step if result.valid.all() else self._repeat_last(step, result.valid))
        self.vector_steps += 1
        self.returns += result.reward
        self.lengths += 1
        ended = result.ended
        if ended.any():
            self.episodes += int(ended.sum())
            self.return_sum += float(self.returns[ended].sum())
            self.length_sum += int(self.lengths[ended].sum())
            self.returns[ended] = 0
            self.lengths[ended] = 0
        self.observation, self.mask, self.first = result.observation, result.mask, result.restarted
        self._last = step

    def _repeat_last(self, step: Step, valid: Bool[np.ndarray, " envs"]) -> Step:
        """The step with the transition before it where an environment only reset itself.

        Environments side by side share a row of the replay. The last transition of an episode is then there twice;
        what the reset looked like, from the end of one episode to the start of the next, never is.
        """
        assert self._last is not None  # no environment resets itself in its first step
        rows = [
            None if new is None else np.where(valid.reshape(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(step, self._last, strict=True)
        ]
        return Step(*rows)

    def _choose(self, params: list[Array], actor: Any, view: View, count: Int[Array, ""]) -> tuple[Actions, Any]:
        network, step = jax.tree.unflatten(self._structures.params, params), count * self.schedule.num_envs
        return self.agent.act(network, actor, view, step, jax.random.fold_in(self.keys.act, count), False)

    def _update(
        self,
        optimizer: list[Array],
        accumulator: Accumulator,
        params: list[Array],
        target: list[Array],
        batch: Batch,
        updates: Int[Array, ""],
        step: Int[Array, ""],
    ) -> tuple[list[Array], list[Array], Accumulator, Float[Array, " batch"]]:
        key = jax.random.fold_in(self.keys.update, updates)
        parts = zip(self._structures, (params, optimizer, target), strict=True)
        agent = AgentState(*(jax.tree.unflatten(*part) for part in parts))
        new_params, new_optimizer, update = self.agent.update(agent, batch, key, updates)
        leaves = jax.tree.leaves(new_params), jax.tree.leaves(new_optimizer)
        return *leaves, accumulator.add_update(update.loss, step), update.priorities

    def _sampling_bits(self, update: int) -> Any:
        block, place = divmod(update, BITS_AT_ONCE)
        if self._bits[0] != block:
            first = block * BITS_AT_ONCE
            self._bits = (block, np.asarray(self._draw(jnp.arange(first, first + BITS_AT_ONCE))))
        return self._bits[1][place]

    def _summarize(self) -> Record:
        bits = np.arange(self.settings.batch_size, dtype=np.uint32) * np.uint32(2654435761)
        observation = self.replay.sample(bits)[0].observation
        metrics = self._metrics(self.agent_state.params, observation)
        accumulator = self.accumulator._replace(
            episodes=np.int32(self.episodes), returns=np.float32(self.return_sum), lengths=np.float32(self.length_sum)
        )
        now = read_schedules(self.agent, self.schedule, self.step)
        return {**accumulator.summarize(), **now, **{tag: float(value) for tag, value in metrics.items()}}

    def _evaluate(self) -> Played:
        """Evaluation episodes with the present parameters, played side by side."""
        episodes = self.settings.evaluation_episodes
        if self._evaluation_envs is None:
            self._evaluation_envs = self.make_evaluation_envs(episodes)
        with self._locate_errors():
            return play_in_host_envs(
                self._act_in_evaluation,
                self.agent.init_actor(episodes),
                self.agent_state.params,
                self._evaluation_envs,
                self.keys,
                self.step,
                self.settings.evaluation_max_steps,
            )

    @contextlib.contextmanager
    def _locate_errors(self) -> Iterator[None]:
        """Say at which step an environment gave a number that is not finite."""
        try:
            yield
        except NonFiniteError as error:
            raise FloatingPointError(f"seed {self.seed}, step {self.step}: {error}") from error
