"""The learning rate: what it is at each update, and that it is the one which updates are made with."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toy_actor_critics import KEY, SPEC, TD3

from qemrl.agents.actor_critic import ActorCriticAgent
from qemrl.agents.optimizer import AdamConfig, apply_gradient, init_optimizer
from qemrl.agents.value import ValueConfig
from qemrl.exploration import BonusExploration, EpsilonGreedy, PowerDecay, StdBonus
from qemrl.types import Batch

FIRST, EVERY = 1_000, 4
"""The step of the first update, and the steps between two."""

PEAK, END = 1e-3, 1e-5
SCHEDULES = [
    (AdamConfig(PEAK), optax.constant_schedule(PEAK)),
    (AdamConfig(PEAK, warmup_steps=80), optax.linear_schedule(0.0, PEAK, 20)),
    (
        AdamConfig(PEAK, schedule="linear", decay_steps=1_400, final_rate=END),
        optax.linear_schedule(PEAK, END, 100),
    ),
    (
        AdamConfig(PEAK, schedule="linear", warmup_steps=40, decay_steps=1_400),
        optax.join_schedules([optax.linear_schedule(0.0, PEAK, 10), optax.linear_schedule(PEAK, 0.0, 90)], [10]),
    ),
    (
        AdamConfig(PEAK, schedule="cosine", warmup_steps=40, decay_steps=1_400, final_rate=END),
        optax.warmup_cosine_decay_schedule(0.0, PEAK, 10, 100, END),
    ),
    (AdamConfig(optax.exponential_decay(PEAK, 30, 0.5)), optax.exponential_decay(PEAK, 30, 0.5)),
]
"""With optax's own schedule of the number of updates: steps over four, counted from the first update."""


@pytest.mark.parametrize(("config", "schedule"), SCHEDULES)
def test_the_rate_is_that_of_optax(config, schedule):
    updates = np.arange(0, 130, 5)
    rates = [float(config.rate(jnp.int32(number), FIRST, EVERY)) for number in updates]
    with jax.numpy_dtype_promotion("standard"):
        expected = [float(schedule(jnp.int32(number))) for number in updates]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize(("config", "schedule"), SCHEDULES)
@pytest.mark.parametrize("norm", [None, 0.5])
def test_parameters_move_as_by_adam_of_optax_with_this_schedule(config, schedule, norm):
    config = replace(config, epsilon=0.1, max_gradient_norm=norm)
    clip = optax.identity() if norm is None else optax.clip_by_global_norm(norm)
    ours, theirs = config.make(), optax.chain(clip, optax.adam(schedule, eps=0.1))
    params: dict[str, jax.Array] = {"a": jnp.array([1.0, -2.0, 3.0])}
    other: Any = params
    state, their_state = init_optimizer(ours, params), theirs.init(params)
    for number in range(25):
        gradient = jax.tree.map(lambda each, n=number: 0.3 * each + jnp.sin(jnp.float32(n)), params)
        rate = config.rate(jnp.int32(number), FIRST, EVERY)
        params, state = apply_gradient(ours, gradient, state, params, rate)
        with jax.numpy_dtype_promotion("standard"):
            changes, their_state = theirs.update(gradient, their_state, other)
        other = optax.apply_updates(other, changes)
    np.testing.assert_allclose(params["a"], other["a"], rtol=2e-6)
    # A schedule has no count of its own: the state is that of a constant rate, and checkpoints fit both.
    constant = init_optimizer(AdamConfig(PEAK, max_gradient_norm=norm).make(), params)
    assert jax.tree.structure(state) == jax.tree.structure(constant)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "linear"}, "a linear schedule needs decay_steps"),
        ({"decay_steps": 500}, "decay_steps and final_rate are for the schedules linear and cosine"),
        ({"final_rate": 1e-6}, "decay_steps and final_rate are for the schedules linear and cosine"),
        ({"schedule": "cosine", "decay_steps": 500, "final_rate": 1.0}, "final_rate must be in"),
        ({"warmup_steps": -1}, "warmup_steps must not be negative"),
        ({"learning_rate": optax.constant_schedule(1.0), "warmup_steps": 5}, "a schedule of its own"),
        (
            {"learning_rate": optax.constant_schedule(1.0), "schedule": "linear", "decay_steps": 9},
            "a schedule of its own",
        ),
    ],
)
def test_schedules_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AdamConfig(**settings)


def test_a_rate_that_has_fallen_before_learning_begins_is_refused():
    optimizer = AdamConfig(schedule="linear", warmup_steps=100, decay_steps=1_100)
    ValueConfig(learning_starts=900, optimizer=optimizer)
    with pytest.raises(ValueError, match="must be beyond 1100, where the warm-up ends; got 1100"):
        ValueConfig(learning_starts=1_000, optimizer=optimizer)


def test_a_policy_that_is_updated_less_often_has_the_rate_of_the_critics():
    """Of updates 0, 1 and 2 the rate is not zero in the first only, and the policy is updated in the second."""
    rate = optax.piecewise_constant_schedule(0.1, {1: 0.0})
    agent = ActorCriticAgent(replace(TD3, optimizer=AdamConfig(rate, 1.0)), SPEC)
    state = agent.init(KEY)
    observation = jax.random.normal(KEY, (4, 3))
    action, one = jnp.zeros((4, 2)), jnp.ones(4)
    batch = Batch(observation, action, one, one, observation, None, one)
    update = jax.jit(agent.update)
    for number, changes in ((0, True), (1, False)):
        params, learning, _ = update(state, batch, KEY, jnp.int32(number))
        for part, changed in (("critics", changes), ("policy", False)):
            pair = (jax.tree.leaves(getattr(each, part)) for each in (state.params, params))
            assert any((old != new).any() for old, new in zip(*pair, strict=True)) == changed
        state = state._replace(params=params, optimizer=learning)
    assert agent.scheduled(jnp.int32(0), jnp.int32(0)) == {"train/learning_rate": jnp.float32(0.1)}


def test_explorations_say_what_they_have_scheduled():
    step = jnp.int32(150)
    assert EpsilonGreedy(1.0, 0.2, 100, 200).scheduled(step, 10)["explore/epsilon"] == pytest.approx(0.8)
    bonus = BonusExploration(StdBonus(), PowerDecay(3.0, 1.0))
    for starts, epsilon in ((150, 0.0), (151, 1.0)):
        found = bonus.scheduled(step, starts)
        assert {tag: float(value) for tag, value in found.items()} == {
            "explore/bonus_factor": pytest.approx(3 / 151),
            "explore/epsilon": epsilon,
        }
    later = replace(bonus, count_from="warm-up").scheduled(step, 101)
    assert later["explore/bonus_factor"] == pytest.approx(3 / 51)
