"""The compiled loop: environment, replay, learning and evaluation in one XLA program, several seeds at once.

A call of the program runs a chunk of iterations and returns, so that progress can be shown and checkpoints written.
Seeds are mapped over; counters are shared by them and stay unmapped, so that writes to replay stay in place.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from qemrl.agents.agent import AgentState, InspectableAgent, View
from qemrl.envs.jax.env import JaxEnv, autoreset_step
from qemrl.replay.device import DeviceReplay
from qemrl.training.evaluation import Played, play_in_jax_env
from qemrl.training.pytrees import flatten, unflatten
from qemrl.training.schedule import Accumulator, Keys, LoopSettings, Record, Stop, never, read_schedules
from qemrl.types import Step


def scan_or_once(work: Callable[[Any, Int[Array, ""]], tuple[Any, Any]], start: Any, count: int) -> tuple[Any, Any]:
    """A scan over 0, ..., count − 1, and no loop where that is one number.

    A program with a loop holds the work once, however often it is done, and compiles in a fraction of the time. But in
    loops of XLA on a processor, convolutions of images take ten times as long.
    """
    if count > 1:
        return jax.lax.scan(work, start, jnp.arange(count, dtype=jnp.int32))
    now, made = work(start, jnp.int32(0))
    return now, jax.tree.map(lambda leaf: leaf[None], made)


class EpisodeState(NamedTuple):
    """The environments side by side, with their episodes in progress."""

    states: Any
    observation: Any
    first: Bool[Array, " envs"]
    returns: Float[Array, " envs"]
    lengths: Int[Array, " envs"]


class SeedState(NamedTuple):
    """All that changes in a run of one seed."""

    agent: AgentState
    actor: Any
    episodes: EpisodeState
    replay: Any
    accumulator: Accumulator


class CompiledLoop:
    """Runs of several seeds of one agent on one JAX environment, in step with one another.

    It can stop between records only, which are seconds apart.
    """

    def __init__(
        self,
        agent: InspectableAgent,
        env: JaxEnv,
        replay: DeviceReplay,
        settings: LoopSettings,
        seeds: Sequence[int],
    ) -> None:
        self.agent, self.env, self.replay, self.settings = agent, env, replay, settings
        self.schedule, self.seeds = settings.schedule, tuple(seeds)
        self.step = 0
        self.keys = jax.vmap(Keys.from_seed)(jnp.asarray(seeds, jnp.uint32))
        self.state: SeedState = jax.jit(jax.vmap(self._init))(self.keys)
        # State is donated: otherwise the replay would be copied with each chunk.
        self._chunk = jax.jit(self._run_chunk, donate_argnums=0)

    @property
    def mean_step(self) -> float:
        """How many steps the seeds have done on average."""
        return float(self.step)

    @property
    def replay_bytes(self) -> int:
        """The memory that the replay of all seeds takes."""
        return sum(array.nbytes for array in jax.tree.leaves(self.state.replay))

    def advance(self, until: int, evaluate: bool, stop: Stop = never, keep_sums: bool = False) -> list[Record] | None:
        """Run to `until` steps, whole iterations, and give a record for each seed, or None if `stop` says so.

        With `evaluate`, the records also hold the returns of evaluation episodes, played at the end. Sums start anew
        with each record, unless they are to be kept for the next one.
        """
        if stop():
            return None
        iterations = (until - self.step) // self.schedule.steps
        count = jnp.int32(iterations)
        self.state, results = self._chunk(self.state, self.keys, self._counts(), jnp.asarray(evaluate), count)
        self.step += iterations * self.schedule.steps
        records = self._records(results, evaluate)
        if not keep_sums:
            self.state = self.state._replace(accumulator=jax.vmap(lambda _: Accumulator.empty())(self.keys.init))
        return records

    def set_evaluation_episodes(self, episodes: int) -> None:
        """Play so many episodes in evaluations from now on; another number is another program."""
        if episodes != self.settings.evaluation_episodes:
            self.settings = self.settings._replace(evaluation_episodes=episodes)
            self._chunk = jax.jit(partial(self._run_chunk), donate_argnums=0)  # not equal to the method, as JAX sees it

    def arrays(self) -> dict[str, np.ndarray]:
        """All that changes, for a checkpoint; of the replay only what was written."""
        return {
            name: array[:, : self._written] if name in self._replay_names else array
            for name, array in flatten(self.state).items()
        }

    def param_arrays(self) -> dict[str, np.ndarray]:
        """The parameters alone, under the names that `arrays` gives them."""
        agent = AgentState(self.state.agent.params, None, None)
        return flatten(SeedState(agent, None, cast("Any", None), None, cast("Any", None)))

    def meta(self) -> dict[str, Any]:
        """What changes and is not an array: nothing."""
        return {}

    def restore(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> list[str]:
        """Go on exactly from where `arrays` were taken; nothing is ever lost."""
        del meta
        self.step = step
        template = jax.eval_shape(lambda: self.state)
        shapes = {
            jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(template)
        }
        whole = {}
        for name, array in arrays.items():
            if name in self._replay_names:
                missing = shapes[name][1] - array.shape[1]
                array = np.pad(array, [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2))
            whole[name] = array
        self.state = unflatten(template, whole)
        return []

    def close(self) -> None:
        """Release what the environment holds, which is nothing."""

    @property
    def _written(self) -> int:
        return min(self.step // self.schedule.num_envs, self.replay.num_rows)

    @property
    def _replay_names(self) -> set[str]:
        """The paths of the arrays with a row for each vector step."""
        rows = jax.eval_shape(self.replay.init)._replace(tree=None, largest=None)
        return {f".replay{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(rows)}

    def params(self, index: int) -> Any:
        """The parameters of one of the seeds."""
        return jax.tree.map(lambda leaf: leaf[index], self.state.agent.params)

    def _counts(self) -> "Counts":
        steps = self.step // self.schedule.num_envs
        updates = self.schedule.updates_until(self.step)
        return Counts(jnp.int32(steps), jnp.int32(updates), jnp.int32(self.schedule.vector_steps))

    def _records(self, results: Any, evaluate: bool) -> list[Record]:
        accumulator, metrics, played = jax.device_get((self.state.accumulator, *results))
        now = read_schedules(self.agent, self.schedule, self.step)
        records = []
        for index, seed in enumerate(self.seeds):
            sums = jax.tree.map(lambda leaf, i=index: leaf[i], accumulator)
            record: Record = {"step": self.step, "seed": seed, **sums.summarize(), **now}
            record |= {tag: float(value[index]) for tag, value in metrics.items()}
            if evaluate:
                record |= Played(*(each[index] for each in played)).as_record()
            records.append(record)
        return records

    def _init(self, keys: Keys) -> SeedState:
        count = self.schedule.num_envs
        states, observation = jax.vmap(self.env.reset)(jax.random.split(jax.random.fold_in(keys.environment, 0), count))
        episodes = EpisodeState(
            states, observation, jnp.ones(count, bool), jnp.zeros(count, jnp.float32), jnp.zeros(count, jnp.int32)
        )
        agent = self.agent.init(keys.init)
        return SeedState(agent, self.agent.init_actor(count), episodes, self.replay.init(), Accumulator.empty())

    def _run_chunk(
        self, state: SeedState, keys: Keys, counts: "Counts", evaluate: Bool[Array, ""], iterations: Int[Array, ""]
    ) -> tuple[SeedState, Any]:
        """Iterations up to the end, with a refresh of the target wherever one is due between them."""
        every = jnp.int32(max(1, self.agent.target_update_every // self.schedule.updates))
        first = jnp.int32(self.schedule.first_update // self.schedule.steps)
        over_seeds = jax.vmap(self._iterate, in_axes=(0, 0, 0, None), out_axes=(0, None))

        def run_to_refresh(
            carry: tuple[SeedState, Counts, Any, Int[Array, ""]],
        ) -> tuple[SeedState, Counts, Any, Int[Array, ""]]:
            state, counts, target, left = carry
            number = counts.vector_steps // self.schedule.vector_steps - first  # of the iteration, since learning began
            due = (number > 0) & (number % every == 0)
            target = jax.lax.cond(
                due,
                jax.vmap(self.agent.refresh_target),
                lambda agent: agent.target,
                state.agent._replace(target=target),
            )
            length = jnp.minimum(left, jnp.where(number < 0, -number, every - number % every))
            state, counts = jax.lax.fori_loop(
                jnp.int32(0), length, lambda _, inner: over_seeds(inner[0], target, keys, inner[1]), (state, counts)
            )
            return state, counts, target, left - length

        target = state.agent.target
        state = state._replace(agent=state.agent._replace(target=None))
        state, counts, target, _ = jax.lax.while_loop(
            lambda carry: carry[3] > 0, run_to_refresh, (state, counts, target, iterations)
        )
        state = state._replace(agent=state.agent._replace(target=target))
        params = state.agent.params
        observation = jax.vmap(lambda replay: self._recent(replay, counts.vector_steps))(state.replay)
        metrics = jax.vmap(self.agent.metrics)(params, observation)
        episodes = self.settings.evaluation_episodes
        limits = {"episodes": episodes, "max_steps": self.settings.evaluation_max_steps}
        play = jax.vmap(partial(play_in_jax_env, self.agent, self.env, **limits), in_axes=(0, 0, None))
        step = counts.vector_steps * self.schedule.num_envs
        shape = (len(self.seeds), episodes)
        played = jax.lax.cond(
            evaluate,
            lambda: play(keys, params, step),
            lambda: Played(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool)),
        )
        return state, (metrics, played)

    def _recent(self, replay: Any, rows: Int[Array, ""]) -> Any:
        """A batch of observations that is the same for the same run, for `metrics`."""
        bits = jnp.arange(self.settings.batch_size, dtype=jnp.uint32) * jnp.uint32(2654435761)
        return self.replay.sample(replay, bits, rows)[0].observation

    def _iterate(self, state: SeedState, target: Any, keys: Keys, counts: "Counts") -> tuple[SeedState, "Counts"]:
        learning = counts.vector_steps * self.schedule.num_envs >= self.schedule.first_update
        # The conditions stay conditions under `vmap`, since counters are not mapped; the replay does not go through
        # them whole, or it would be copied.
        params, optimizer, accumulator, priorities = jax.lax.cond(
            learning, partial(self._learn, target=target, keys=keys, counts=counts), self._learn_nothing, state
        )

        def step(
            number: Int[Array, ""], now: tuple[Any, EpisodeState, Any, Accumulator]
        ) -> tuple[Any, EpisodeState, Any, Accumulator]:
            return self._step(state.agent.params, *now, keys, counts.vector_steps + number)

        # A loop even over a few steps: the program then holds the environment once, and compiles in half the time. XLA
        # must not know its length: it would dissolve a loop of one step, see nothing that keeps the write to replay
        # after the reads of `_learn`, and copy the replay for them. The accumulator makes the whole loop come after.
        start = (state.actor, state.episodes, state.replay, accumulator)
        actor, episodes, replay, accumulator = jax.lax.fori_loop(jnp.int32(0), counts.in_iteration, step, start)
        if self.replay.config.prioritized:
            tree, largest = jax.lax.cond(
                learning, self._update_priorities, lambda replay, _: (replay.tree, replay.largest), replay, priorities
            )
            replay = replay._replace(tree=tree, largest=largest)
        updates = jnp.where(learning, counts.updates + self.schedule.updates, counts.updates)
        counts = counts._replace(vector_steps=counts.vector_steps + self.schedule.vector_steps, updates=updates)
        return SeedState(AgentState(params, optimizer, None), actor, episodes, replay, accumulator), counts

    def _learn(
        self, state: SeedState, target: Any, keys: Keys, counts: "Counts"
    ) -> tuple[Any, Any, Accumulator, tuple[Int[Array, "updates batch"], Float[Array, "updates batch"]]]:
        def learn(
            now: tuple[Any, Any, Accumulator], number: Int[Array, ""]
        ) -> tuple[tuple[Any, Any, Accumulator], Any]:
            params, optimizer, accumulator = now
            updates = counts.updates + number
            batch, indices = self.replay.sample(
                state.replay, keys.bits(updates, self.settings.batch_size), counts.vector_steps
            )
            key = jax.random.fold_in(keys.update, updates)
            params, optimizer, update = self.agent.update(AgentState(params, optimizer, target), batch, key, updates)
            accumulator = accumulator.add_update(update.loss, counts.vector_steps * self.schedule.num_envs)
            return (params, optimizer, accumulator), (indices, update.priorities)

        now, priorities = scan_or_once(
            learn, (state.agent.params, state.agent.optimizer, state.accumulator), self.schedule.updates
        )
        return *now, priorities

    def _learn_nothing(self, state: SeedState) -> tuple[Any, Any, Accumulator, Any]:
        shape = (self.schedule.updates, self.settings.batch_size)
        nothing = (jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))
        return state.agent.params, state.agent.optimizer, state.accumulator, nothing

    def _update_priorities(self, replay: Any, priorities: Any) -> tuple[Any, Any]:
        def write(number: Int[Array, ""], replay: Any) -> Any:
            return self.replay.update_priorities(replay, *jax.tree.map(lambda leaf: leaf[number], priorities))

        replay = jax.lax.fori_loop(0, self.schedule.updates, write, replay)
        return replay.tree, replay.largest

    def _step(
        self,
        params: Any,
        actor: Any,
        episodes: EpisodeState,
        replay: Any,
        accumulator: Accumulator,
        keys: Keys,
        rows: Int[Array, ""],
    ) -> tuple[Any, EpisodeState, Any, Accumulator]:
        view = View(episodes.observation, self._mask(episodes.states), episodes.first)
        step = rows * self.schedule.num_envs
        action, actor = self.agent.act(params, actor, view, step, jax.random.fold_in(keys.act, rows), False)
        env_keys = jax.random.split(jax.random.fold_in(keys.environment, rows + 1), self.schedule.num_envs)
        states, observation, outcome = jax.vmap(partial(autoreset_step, self.env))(episodes.states, action, env_keys)
        ended = outcome.terminated | outcome.truncated
        reward = jnp.clip(outcome.reward, -1.0, 1.0) if self.settings.clip_rewards else outcome.reward
        bonus = self.agent.intrinsic_reward(actor)
        reward = reward if bonus is None else reward + bonus
        stored = Step(
            episodes.observation,
            action,
            reward,
            outcome.terminated,
            outcome.truncated,
            outcome.observation,
            self._mask(outcome.state),
            self.agent.member_mask(self.schedule.num_envs, keys.mask_key(rows)),
        )
        replay = self.replay.add(replay, stored, rows)
        returns, lengths = episodes.returns + outcome.reward, episodes.lengths + 1
        accumulator = accumulator.add_step(ended, returns, lengths, outcome.reward, outcome.observation, step)
        episodes = EpisodeState(
            states, observation, ended, jnp.where(ended, 0.0, returns), jnp.where(ended, jnp.int32(0), lengths)
        )
        return actor, episodes, replay, accumulator

    def _mask(self, states: Any) -> Bool[Array, "envs actions"] | None:
        return jax.vmap(self.env.mask)(states) if self.env.spec.has_mask else None


class Counts(NamedTuple):
    """Counters, shared by all seeds."""

    vector_steps: Int[Array, ""]
    updates: Int[Array, ""]
    in_iteration: Int[Array, ""]
    """The vector steps of one iteration, as a number that the program is given and does not hold."""
