"""The compiled loop: environment, replay, learning and evaluation in one XLA program, several seeds at once.

A call of the program runs a chunk of iterations and returns, so that progress can be shown and checkpoints written.
Seeds are mapped over; counters are shared by them and stay unmapped, so that writes to replay stay in place.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from qemrl.agents.agent import Agent, AgentState, View
from qemrl.envs.jax.env import JaxEnv, autoreset_step
from qemrl.replay.device import DeviceReplay
from qemrl.training.accumulator import Accumulator
from qemrl.training.checkpoint import flatten, unflatten
from qemrl.training.evaluation import play_compiled
from qemrl.training.randomness import Keys
from qemrl.training.schedule import StepSchedule
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


class Running(NamedTuple):
    """The environments side by side, in the midst of their episodes."""

    states: Any
    observation: Any
    first: Bool[Array, " envs"]
    returns: Float[Array, " envs"]
    lengths: Int[Array, " envs"]


class SeedState(NamedTuple):
    """All that changes in a run of one seed."""

    agent: AgentState
    actor: Any
    running: Running
    replay: Any
    accumulator: Accumulator


class CompiledLoop:
    """Runs of several seeds of one agent on one compiled environment, in step with one another."""

    def __init__(
        self,
        agent: Agent,
        env: JaxEnv,
        replay: DeviceReplay,
        schedule: StepSchedule,
        batch_size: int,
        clip_rewards: bool,
        seeds: tuple[int, ...],
        evaluation_episodes: int,
    ) -> None:
        self.agent, self.env, self.replay, self.schedule = agent, env, replay, schedule
        self.batch_size, self.clip_rewards = batch_size, clip_rewards
        self.seeds, self.evaluation_episodes = seeds, evaluation_episodes
        self.step = 0
        self.keys = jax.vmap(Keys.of)(jnp.asarray(seeds, jnp.uint32))
        self.state: SeedState = jax.jit(jax.vmap(self._start))(self.keys)
        # State is donated: the replay would else be copied with each chunk.
        self._chunk = jax.jit(self._run_chunk, donate_argnums=0)

    def advance(self, until: int, evaluate: bool) -> list[dict[str, Any]]:
        """Run to `until` steps, a whole number of iterations; numbers by tag, one record for each seed.

        With `evaluate`, the records also hold the returns of evaluation episodes, played at the end.
        """
        iterations = (until - self.step) // self.schedule.steps
        count = jnp.int32(iterations)
        self.state, results = self._chunk(self.state, self.keys, self._counts(), jnp.asarray(evaluate), count)
        self.step += iterations * self.schedule.steps
        records = self._records(results, evaluate)
        self.state = self.state._replace(accumulator=jax.vmap(lambda _: Accumulator.empty())(self.keys.init))
        return records

    def evaluate(self, episodes: int) -> tuple[Float[np.ndarray, "seeds episodes"], Int[np.ndarray, "seeds episodes"]]:
        """Returns and lengths of evaluation episodes with the present parameters."""
        play = jax.jit(jax.vmap(partial(play_compiled, self.agent, self.env, episodes=episodes), in_axes=(0, 0, None)))
        returns, lengths = play(self.keys, self.state.agent.params, jnp.int32(self.step))
        return np.asarray(returns), np.asarray(lengths)

    def arrays(self) -> dict[str, np.ndarray]:
        """All that changes, for a checkpoint; of the replay only what was written."""
        return {
            name: array[:, : self._written] if name in self._replay_names else array
            for name, array in flatten(self.state).items()
        }

    def restore(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on exactly from where `arrays` were taken."""
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

    def _records(self, results: Any, evaluate: bool) -> list[dict[str, Any]]:
        accumulator, numbers, (returns, lengths) = jax.device_get((self.state.accumulator, *results))
        records = []
        for index, seed in enumerate(self.seeds):
            record = {
                "step": self.step,
                "seed": seed,
                **jax.tree.map(lambda leaf, i=index: leaf[i], accumulator).numbers(),
            }
            record |= {tag: float(value[index]) for tag, value in numbers.items()}
            if evaluate:
                record |= {"eval/returns": returns[index].tolist(), "eval/lengths": lengths[index].tolist()}
            records.append(record)
        return records

    def _start(self, keys: Keys) -> SeedState:
        count = self.schedule.num_envs
        states, observation = jax.vmap(self.env.reset)(jax.random.split(jax.random.fold_in(keys.environment, 0), count))
        running = Running(
            states, observation, jnp.ones(count, bool), jnp.zeros(count, jnp.float32), jnp.zeros(count, jnp.int32)
        )
        agent = self.agent.init(keys.init)
        return SeedState(agent, self.agent.init_actor(count), running, self.replay.init(), Accumulator.empty())

    def _run_chunk(
        self, state: SeedState, keys: Keys, counts: "Counts", evaluate: Bool[Array, ""], iterations: Int[Array, ""]
    ) -> tuple[SeedState, Any]:
        """Iterations up to the end, with a refresh of what is frozen wherever one is due between them."""
        every = jnp.int32(max(1, self.agent.target_update_every // self.schedule.updates))
        first = jnp.int32(self.schedule.first_update // self.schedule.steps)
        over_seeds = jax.vmap(self._iterate, in_axes=(0, 0, 0, None), out_axes=(0, None))

        def stretch(
            carry: tuple[SeedState, Counts, Any, Int[Array, ""]],
        ) -> tuple[SeedState, Counts, Any, Int[Array, ""]]:
            state, counts, frozen, left = carry
            number = counts.vector_steps // self.schedule.vector_steps - first  # of the iteration, since learning began
            due = (number > 0) & (number % every == 0)
            frozen = jax.lax.cond(
                due,
                jax.vmap(self.agent.refresh_target),
                lambda agent: agent.target,
                state.agent._replace(target=frozen),
            )
            length = jnp.minimum(left, jnp.where(number < 0, -number, every - number % every))
            state, counts = jax.lax.fori_loop(
                jnp.int32(0), length, lambda _, inner: over_seeds(inner[0], frozen, keys, inner[1]), (state, counts)
            )
            return state, counts, frozen, left - length

        frozen = state.agent.target
        state = state._replace(agent=state.agent._replace(target=None))
        state, counts, frozen, _ = jax.lax.while_loop(
            lambda carry: carry[3] > 0, stretch, (state, counts, frozen, iterations)
        )
        state = state._replace(agent=state.agent._replace(target=frozen))
        params = state.agent.params
        observation = jax.vmap(lambda replay: self._recent(replay, counts.vector_steps))(state.replay)
        numbers = jax.vmap(self.agent.metrics)(params, observation)
        play = jax.vmap(
            partial(play_compiled, self.agent, self.env, episodes=self.evaluation_episodes), in_axes=(0, 0, None)
        )
        step = counts.vector_steps * self.schedule.num_envs
        shape = (len(self.seeds), self.evaluation_episodes)
        played = jax.lax.cond(
            evaluate,
            lambda: play(keys, params, step),
            lambda: (jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.int32)),
        )
        return state, (numbers, played)

    def _recent(self, replay: Any, rows: Int[Array, ""]) -> Any:
        """A batch of observations that is the same for the same run, for `inspect`."""
        bits = jnp.arange(self.batch_size, dtype=jnp.uint32) * jnp.uint32(2654435761)
        return self.replay.sample(replay, bits, rows)[0].observation

    def _iterate(self, state: SeedState, frozen: Any, keys: Keys, counts: "Counts") -> tuple[SeedState, "Counts"]:
        learning = counts.vector_steps * self.schedule.num_envs >= self.schedule.first_update
        # The conditions stay conditions under `vmap`, since counters are not mapped; the replay does not go through
        # them whole, or it would be copied.
        params, learned, accumulator, surprises = jax.lax.cond(
            learning, partial(self._learn, frozen=frozen, keys=keys, counts=counts), self._learn_nothing, state
        )

        def step(
            number: Int[Array, ""], now: tuple[Any, Running, Any, Accumulator]
        ) -> tuple[Any, Running, Any, Accumulator]:
            return self._step(state.agent.params, *now, keys, counts.vector_steps + number)

        # A loop even over a few steps: the program then holds the environment once, and compiles in half the time. XLA
        # must not know its length: it would dissolve a loop of one step, see nothing that keeps the write to replay
        # after the reads of `_learn`, and copy the replay for them. The accumulator makes the loop as a whole come after.
        start = (state.actor, state.running, state.replay, accumulator)
        actor, running, replay, accumulator = jax.lax.fori_loop(jnp.int32(0), counts.in_iteration, step, start)
        if self.replay.config.prioritized:
            tree, largest = jax.lax.cond(
                learning, self._with_priorities, lambda replay, _: (replay.tree, replay.largest), replay, surprises
            )
            replay = replay._replace(tree=tree, largest=largest)
        updates = jnp.where(learning, counts.updates + self.schedule.updates, counts.updates)
        counts = counts._replace(vector_steps=counts.vector_steps + self.schedule.vector_steps, updates=updates)
        return SeedState(AgentState(params, learned, None), actor, running, replay, accumulator), counts

    def _learn(
        self, state: SeedState, frozen: Any, keys: Keys, counts: "Counts"
    ) -> tuple[Any, Any, Accumulator, tuple[Int[Array, "updates batch"], Float[Array, "updates batch"]]]:
        def learn(
            now: tuple[Any, Any, Accumulator], number: Int[Array, ""]
        ) -> tuple[tuple[Any, Any, Accumulator], Any]:
            params, learning, accumulator = now
            updates = counts.updates + number
            batch, indices = self.replay.sample(state.replay, keys.bits(updates, self.batch_size), counts.vector_steps)
            key = jax.random.fold_in(keys.update, updates)
            params, learning, update = self.agent.update(AgentState(params, learning, frozen), batch, key, updates)
            accumulator = accumulator.learned(update.loss, counts.vector_steps * self.schedule.num_envs)
            return (params, learning, accumulator), (indices, update.priorities)

        now, surprises = scan_or_once(
            learn, (state.agent.params, state.agent.optimizer, state.accumulator), self.schedule.updates
        )
        return *now, surprises

    def _learn_nothing(self, state: SeedState) -> tuple[Any, Any, Accumulator, Any]:
        shape = (self.schedule.updates, self.batch_size)
        nothing = (jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))
        return state.agent.params, state.agent.optimizer, state.accumulator, nothing

    def _with_priorities(self, replay: Any, surprises: Any) -> tuple[Any, Any]:
        def write(number: Int[Array, ""], replay: Any) -> Any:
            indices, priorities = jax.tree.map(lambda leaf: leaf[number], surprises)
            return self.replay.update_priorities(replay, indices, priorities)

        replay = jax.lax.fori_loop(0, self.schedule.updates, write, replay)
        return replay.tree, replay.largest

    def _step(
        self,
        params: Any,
        actor: Any,
        running: Running,
        replay: Any,
        accumulator: Accumulator,
        keys: Keys,
        rows: Int[Array, ""],
    ) -> tuple[Any, Running, Any, Accumulator]:
        view = View(running.observation, self._mask(running.states), running.first)
        step = rows * self.schedule.num_envs
        action, actor = self.agent.act(params, actor, view, step, jax.random.fold_in(keys.act, rows), False)
        env_keys = jax.random.split(jax.random.fold_in(keys.environment, rows + 1), self.schedule.num_envs)
        states, observation, outcome = jax.vmap(partial(autoreset_step, self.env))(running.states, action, env_keys)
        ended = outcome.terminated | outcome.truncated
        reward = jnp.clip(outcome.reward, -1.0, 1.0) if self.clip_rewards else outcome.reward
        earned = self.agent.intrinsic_reward(actor)
        reward = reward if earned is None else reward + earned
        stored = Step(
            running.observation,
            action,
            reward,
            outcome.terminated,
            outcome.truncated,
            outcome.observation,
            self._mask(outcome.state),
        )
        replay = self.replay.add(replay, stored, rows)
        returns, lengths = running.returns + outcome.reward, running.lengths + 1
        accumulator = accumulator.stepped(ended, returns, lengths, outcome.reward, outcome.observation, step)
        running = Running(
            states, observation, ended, jnp.where(ended, 0.0, returns), jnp.where(ended, jnp.int32(0), lengths)
        )
        return actor, running, replay, accumulator

    def _mask(self, states: Any) -> Bool[Array, "envs actions"] | None:
        return jax.vmap(self.env.mask)(states) if self.env.spec.has_mask else None


class Counts(NamedTuple):
    """Counters, shared by all seeds."""

    vector_steps: Int[Array, ""]
    updates: Int[Array, ""]
    in_iteration: Int[Array, ""]
    """The vector steps of one iteration, as a number that the program is given and does not hold."""
