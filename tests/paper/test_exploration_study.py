"""The exploration study: what solving a task means, when it is solved, and what tells the arms apart."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.exploration import BonusExploration, CountBonus, EpsilonGreedy, LeftTruncatedStdBonus, QEMStdBonus
from qemrl.paper.items.exploration_study import (
    ARMS,
    TASKS,
    agent,
    chain_task,
    deep_sea_task,
    mountain_car_task,
    outcome_of,
    run_of,
)
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.loops import make_loop


def test_a_task_is_solved_when_it_is_twice_in_succession():
    yes, no = True, False
    answers = np.array([[no, yes, yes, no], [no, no, yes, yes], [yes, yes, no, no], [yes, no, no, yes]])
    outcome = outcome_of(np.array([10, 20, 30, 40]), answers)
    np.testing.assert_array_equal(outcome.solved, [yes, no, yes, no])
    np.testing.assert_array_equal(outcome.steps, [30, 40, 10, 40])
    np.testing.assert_array_equal(outcome.kept, [yes, no, no, yes])


@pytest.mark.parametrize(("task", "best"), [(deep_sea_task(5), 0.99), (chain_task(10), 12.0)])
def test_solved_means_that_the_greedy_policy_gets_the_best_return(task, best):
    """Networks that have learned nothing choose by chance, and now and then get it right."""
    loop = make_loop(run_of("ε-greedy", task, 0, 400))
    assert isinstance(loop, CompiledLoop)
    solved = task.solved(loop, [])
    env, agent = loop.env, loop.agent

    def play(params, key):
        def step(carry, _):
            state, observation, total, ended = carry
            action = jnp.argmax(agent.q_values(params, observation[None])[0]).astype(jnp.int32)
            outcome = env.step(state, action, key)
            total = total + jnp.where(ended, jnp.float32(0), outcome.reward)
            return (outcome.state, outcome.observation, total, ended | outcome.terminated), None

        start = (*env.reset(key), jnp.float32(0), jnp.bool_(False))
        return jax.lax.scan(step, start, None, length=30)[0][2]

    returns = jax.jit(jax.vmap(play, in_axes=(0, None)))(loop.state.agent.params, jax.random.key(0))
    np.testing.assert_array_equal(solved, np.isclose(returns, best, atol=1e-4))
    assert solved.sum() < 40
    assert solved.any() or task.env == "jax/chain-10"  # one in 32, and one in 512


def test_the_mountain_car_is_solved_when_it_always_arrives():
    records = [{"eval/returns": returns} for returns in ([-120.0, -199.0], [-120.0, -200.0], [-200.0, -200.0])]
    loop = make_loop(run_of("ε-greedy", mountain_car_task(), 0, 1))
    assert isinstance(loop, CompiledLoop)
    np.testing.assert_array_equal(mountain_car_task().solved(loop, records), [True, False, False])


def test_arms_differ_in_how_they_explore_and_qem_in_its_estimator_too():
    arms = {arm: agent(arm, 1000) for arm in ARMS}
    for arm, config in arms.items():
        plain = replace(config, exploration=arms["ε-greedy"].exploration, estimator=arms["ε-greedy"].estimator)
        assert plain == arms["ε-greedy"]
        assert (config.estimator != arms["ε-greedy"].estimator) == (arm == "QEM spread")
        assert config.exploration.evaluation == 0
    kinds = [getattr(config.exploration, "bonus", None) for config in arms.values()]
    assert isinstance(arms["ε-greedy"].exploration, EpsilonGreedy)
    assert [type(kind) for kind in kinds[1:]] == [LeftTruncatedStdBonus, QEMStdBonus, CountBonus, CountBonus]
    count, reward = arms["count"].exploration, arms["count in the reward"].exploration
    assert isinstance(count, BonusExploration)
    assert isinstance(reward, BonusExploration)
    assert float(count.schedule(jnp.int32(0))) == 1
    assert float(reward.schedule(jnp.int32(0))) == 0
    assert kinds[3] == CountBonus()
    assert kinds[4] == CountBonus(reward=0.05)


def test_every_task_has_an_environment_and_a_hundred_looks():
    for tasks in TASKS.values():
        for task in tasks:
            config = run_of("DLTV", task, 0, 2)
            assert config.whole_steps == task.steps
            assert 90 <= task.steps / config.log_every <= 110 or task.steps < 2_000
