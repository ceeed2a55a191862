"""ε-greedy: its schedule, its frequencies, and what it never does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.exploration import ActionContext, EpsilonGreedy, greedy_action, mask_q
from qemrl.types import EnvSpec, ReturnDist

SPEC = EnvSpec("none", (1,), "float32", 4)


def context(q, mask=None, step: int = 0) -> ActionContext:
    q = jnp.asarray(q, jnp.float32)
    dist = ReturnDist(q[..., None], np.array([0.5]))
    mask = None if mask is None else jnp.asarray(mask)
    return ActionContext(None, dist, q, mask, jnp.zeros(q.shape[0], bool), jnp.int32(step))


def choose(exploration: EpsilonGreedy, now: ActionContext, seed: int = 0, evaluating: bool = False) -> np.ndarray:
    actions, state = exploration.select_action(
        exploration.init(now.q.shape[0], SPEC), now, jax.random.key(seed), evaluating
    )
    assert state == ()
    assert actions.dtype == jnp.int32
    return np.asarray(actions)


@pytest.mark.parametrize(
    ("step", "epsilon"), [(0, 1.0), (100, 1.0), (150, 0.775), (200, 0.55), (299, 0.1045), (300, 0.1), (10**9, 0.1)]
)
def test_epsilon_waits_and_then_falls_in_a_straight_line(step, epsilon):
    schedule = EpsilonGreedy(1.0, 0.1, begin_steps=100, over_steps=200)
    assert float(schedule.epsilon(jnp.int32(step))) == pytest.approx(epsilon, rel=1e-5)


def test_random_actions_are_uniform_and_as_frequent_as_epsilon_says():
    """Halfway from 1 to 0.2, ε is 0.6: the best of four actions has probability 0.4 + 0.6/4, each other 0.15."""
    exploration = EpsilonGreedy(1.0, 0.2, over_steps=100)
    q = np.broadcast_to(np.array([0.0, 3.0, 1.0, 2.0]), (20_000, 1, 4))
    shares = np.bincount(choose(exploration, context(q, step=50)), minlength=4) / 20_000
    np.testing.assert_allclose(shares, [0.15, 0.55, 0.15, 0.15], atol=4 * np.sqrt(0.25 / 20_000))


def test_among_random_actions_all_allowed_ones_are_equally_frequent_and_no_other_occurs():
    mask = np.tile([[True, False, True, True], [False, True, False, False]], (10_000, 1))
    actions = choose(EpsilonGreedy(1.0, 1.0), context(np.zeros((20_000, 1, 4)), mask))
    shares = np.bincount(actions[::2], minlength=4) / 10_000
    np.testing.assert_allclose(shares, [1 / 3, 0, 1 / 3, 1 / 3], atol=4 * np.sqrt(0.25 / 10_000))
    assert shares[1] == 0
    assert (actions[1::2] == 1).all()


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_a_forbidden_action_is_never_chosen_however_good(epsilon):
    q = np.tile([[[1.0, 1000.0, 2.0]]], (2000, 1, 1))
    mask = np.tile([[True, False, True]], (2000, 1))
    actions = choose(EpsilonGreedy(epsilon, epsilon), context(q, mask))
    assert 1 not in actions
    assert (actions == 2).mean() >= (1 if epsilon == 0 else 0.7)


def test_the_first_of_equal_actions_is_greedy_and_masks_come_before_ties():
    q = [[[1.0, 2.0, 2.0]], [[0.0, 0.0, 0.0]], [[5.0, 5.0, 5.0]]]
    mask = [[True, True, True], [True, True, True], [False, True, True]]
    assert greedy_action(context(q, mask)).tolist() == [1, 0, 1]
    assert greedy_action(context(q)).tolist() == [1, 0, 0]


def test_greedy_averages_over_the_members_of_an_ensemble():
    assert greedy_action(context([[[0.0, 3.0, 2.0], [1.0, -3.0, 2.0]]])).tolist() == [2]


def test_all_forbidden_values_are_minus_infinity_and_others_are_untouched():
    q = jnp.asarray([[1.0, -2.0]], jnp.float32)
    assert mask_q(q, None) is q
    assert mask_q(q, jnp.asarray([[False, True]])).tolist() == [[-np.inf, -2.0]]


def test_evaluation_has_an_epsilon_of_its_own():
    q = np.broadcast_to(np.array([0.0, 1.0]), (4000, 1, 2))
    exploration = EpsilonGreedy(1.0, 1.0, evaluation=0.0)
    assert (choose(exploration, context(q), evaluating=True) == 1).all()
    assert 0.4 < (choose(exploration, context(q)) == 1).mean() < 0.6


def test_each_key_draws_anew_and_repeats_itself():
    now = context(np.zeros((200, 1, 5)))
    first, again, other = (choose(EpsilonGreedy(1.0, 1.0), now, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"initial": 1.2}, "initial.*1.2"), ({"final": -0.1}, "final"), ({"evaluation": 2.0}, "evaluation")],
)
def test_what_is_no_probability_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EpsilonGreedy(**settings)


@pytest.mark.parametrize("settings", [{"over_steps": 0}, {"begin_steps": -1}])
def test_a_schedule_that_goes_nowhere_is_refused(settings):
    with pytest.raises(ValueError, match="over_steps must be positive"):
        EpsilonGreedy(**settings)
