"""The actor-critic agent: whole updates against formulas that are written out, and small numbers by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_actor_critics import (
    CONFIGS,
    DSAC,
    ENTROPY,
    EPSILON,
    HAND_DSAC,
    HAND_SAC,
    HAND_TQC,
    KEY,
    POLYAK,
    QEM_DSAC,
    RATE,
    SAC,
    TD3,
    TQC,
    difference,
    flat,
    in_the_midst,
    pinball,
    prepared,
    rows,
    shaken,
    transitions,
    updated,
    with_temperature,
    written_out,
)

from qemrl.agents.policies import FixedTemperature
from qemrl.distributional.ensembles import SmallestCritic
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.estimators import QEM, CVaR, EmpiricalMean

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("name", CONFIGS)
def test_an_update_is_what_the_formulas_say(name):
    """All of it: the Bellman target, the members' losses, the policy's step on the critics as they then are, the
    temperature's step, and target networks that move towards what was learned just now.
    """
    config, batch = CONFIGS[name], transitions()
    state = in_the_midst(config)
    found, wanted = updated(config, state, batch), jax.jit(lambda *given: written_out(config, *given))(state, batch)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    np.testing.assert_allclose(found["losses"], wanted["losses"], rtol=2e-4)
    for part in ("critics", "policy", "log temperature", "target critics", "target policy"):
        assert difference(found[part], wanted[part]) < 3e-6, part
    # All of that moved by much more than it may differ, so that it could not be right by status still.
    assert difference(found["critics"], state.params.critics) > 1e-3
    assert difference(found["policy"], state.params.policy) > 1e-3
    assert difference(found["target critics"], state.optimizer.target_critics) > 1e-3


def test_the_loss_of_an_update_is_the_weighted_mean_of_the_rows():
    batch = transitions()
    _, _, update = prepared(TQC)[2](in_the_midst(TQC), batch, KEY, jnp.int32(0))
    assert float(update.loss) == pytest.approx(float(jnp.mean(batch.weight * update.priorities**2)), rel=1e-5)


def test_the_target_of_sac_by_hand():
    """min(2, 3) + ½ log 2π · 2 · ½ = 2.919; y = r + ½ · 2.919 = 1.709 or, where the episode ended, r = ¼.

    The critics say 1 and −1: the losses are half the squares of y − 1 and y + 1, summed.
    """
    state = flat(HAND_SAC, [[1.0], [-1.0]], [[3.0], [2.0]])
    losses = updated(HAND_SAC, state, rows([0.25, 0.25], [0.5, 0.0]))["losses"]
    goal = np.array([0.25 + 0.5 * (2 + 0.5 * ENTROPY), 0.25])
    assert goal[0] == pytest.approx(1.7095, abs=1e-4)
    np.testing.assert_allclose(losses, 0.5 * (goal - 1) ** 2 + 0.5 * (goal + 1) ** 2, rtol=1e-5)


def test_the_target_of_dsac_by_hand():
    """Curves (0, 4) and (1, 2): the least at each level is (0, 2), and neither curve. Entropy ½ log 2π is added.

    The target policy has log-deviations 1 instead of 0, which adds ½ · 2 to that; the online policy's do not count.
    """
    state = flat(
        HAND_DSAC, [[0.0, 1.0], [2.0, 3.0]], [[0.0, 4.0], [1.0, 2.0]], policy=(0, 0, -3, -3), target_policy=(0, 0, 1, 1)
    )
    losses = updated(HAND_DSAC, state, rows([0.25, 0.25], [0.5, 0.0]))["losses"]
    soft = np.array([0.0, 2.0]) + 0.5 * (ENTROPY + 2)
    for loss, goal in zip(losses, (0.25 + 0.5 * soft, np.array([0.25, 0.25])), strict=True):
        wanted = sum(pinball((0.25, 0.75), values, goal, (0.5, 0.5)) for values in ((0.0, 1.0), (2.0, 3.0)))
        assert float(loss) == pytest.approx(wanted, rel=1e-5)


def test_the_target_of_tqc_by_hand():
    """Atoms (0, 4), (1, 2), (−1, 8) with one dropped for each of three critics: −1, 0 and 1 are left. α = e^0 = 1."""
    online = [[0.0, 1.0], [2.0, 3.0], [-1.0, 0.0]]
    state = with_temperature(flat(HAND_TQC, online, [[0.0, 4.0], [1.0, 2.0], [-1.0, 8.0]]), 1.0)
    losses = updated(HAND_TQC, state, rows([0.25], [0.5]))["losses"]
    goal = 0.25 + 0.5 * (np.array([-1, 0, 1]) + ENTROPY)
    wanted = sum(pinball((0.25, 0.75), values, goal, (1 / 3,) * 3) for values in online)
    assert float(losses[0]) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", ["sac", "dsac", "tqc", "td3"])
def test_a_discount_of_zero_makes_the_reward_the_target(name):
    """Whatever target networks and policies say; and another reward makes another target."""
    config, batch = CONFIGS[name], transitions()
    state = in_the_midst(config)
    other = state._replace(
        optimizer=state.optimizer._replace(
            target_critics=shaken(state.optimizer.target_critics, 7),
            target_policy=None if not config.target_policy else shaken(state.optimizer.target_policy, 8),
        )
    )
    ended = batch._replace(discount=jnp.zeros(6))
    one, two = (updated(config, each, ended)["losses"] for each in (state, other))
    np.testing.assert_array_equal(one, two)
    assert np.all(np.asarray(updated(config, other, batch)["losses"])[batch.discount > 0] != two[batch.discount > 0])
    moved = updated(config, state, ended._replace(reward=batch.reward + 1))["losses"]
    assert np.all(np.asarray(moved) != np.asarray(one))


@pytest.mark.parametrize("name", ["sac", "tqc", "dsac", "td3"])
def test_targets_follow_the_policy_itself_or_its_slow_copy(name):
    """SAC and TQC the former, DSAC and TD3 the latter."""
    config, batch = CONFIGS[name], transitions()
    state = in_the_midst(config)
    follows_copy = name in ("dsac", "td3")
    assert (state.optimizer.target_policy is not None) == follows_copy
    params = state.params
    other = state._replace(params=type(params)(shaken(params.policy, 50), params.critics, params.log_temperature))
    one, two = (np.asarray(updated(config, each, batch)["losses"]) for each in (state, other))
    continuing = np.asarray(batch.discount) > 0
    assert np.all((one == two)[continuing] == follows_copy)
    assert np.all((one == two)[~continuing])


def test_target_networks_are_copies_at_the_start_and_critics_differ():
    for config in (DSAC, TQC):
        params, learning, frozen = jax.jit(prepared(config)[0].init)(KEY)
        assert frozen == ()
        assert difference(learning.target_critics, params.critics) == 0
        assert difference(params.critics[0], params.critics[1]) > 0.1
        if config is DSAC:
            assert difference(learning.target_policy, params.policy) == 0
            assert params.log_temperature is None
        else:
            assert learning.target_policy is None
            assert float(params.log_temperature) == pytest.approx(np.log(0.5), rel=1e-6)  # as it is told


def test_target_networks_move_by_a_share_towards_the_updated_critics():
    """Old + polyak · (new − old)."""
    state = in_the_midst(SAC)
    found = updated(SAC, state, transitions())
    olds, news = (jax.tree.leaves(each) for each in (state.optimizer.target_critics, found["critics"]))
    for old, new, slow in zip(olds, news, jax.tree.leaves(found["target critics"]), strict=True):
        old, new, slow = (np.asarray(each, np.float64) for each in (old, new, slow))
        np.testing.assert_allclose(slow - old, POLYAK * (new - old), atol=2e-7)


def test_with_a_delay_the_policy_and_the_targets_wait_and_the_critics_do_not():
    """Of every two updates the first leaves them alone, bit for bit; what the second does is compared above."""
    state, batch = in_the_midst(TD3), transitions()
    first, second, third, fourth = (updated(TD3, state, batch, number) for number in range(4))
    assert difference(first, third) == difference(second, fourth) == 0
    assert difference(first["critics"], second["critics"]) == 0
    assert difference(first["policy"], state.params.policy) == 0
    assert difference(first["target critics"], state.optimizer.target_critics) == 0
    assert difference(first["target policy"], state.optimizer.target_policy) == 0
    for part in ("policy", "target critics", "target policy"):
        assert difference(first[part], second[part]) > 1e-3


def test_importance_weights_reach_the_critics_and_the_policy():
    """What is in a transition of weight zero does not matter, but to its priority; and weights scale what does."""
    batch = transitions(4)
    silent = batch._replace(weight=jnp.asarray([1.0, 0.0, 0.5, 0.0]))
    changed = silent._replace(
        observation=silent.observation.at[1].add(1.0),
        reward=silent.reward.at[1].add(9.0),
        action=silent.action.at[3, 0].add(0.5),
    )
    for config in (SAC, DSAC):
        state = in_the_midst(config)
        one, two, full = (updated(config, state, each) for each in (silent, changed, batch))
        assert difference(one["critics"], two["critics"]) < 1e-7
        assert difference(one["policy"], two["policy"]) < 1e-7
        assert difference(one["critics"], full["critics"]) > 1e-4
        assert np.all((np.asarray(one["losses"]) != np.asarray(two["losses"]))[[1, 3]])
        np.testing.assert_array_equal(one["losses"], full["losses"])


# The policy's side. `slopes` are how much each output rises with the action's first component, which is tanh of the
# policy's first output at 0, so that dQ/d(output) is the slope itself.


def climbed(config, online, slopes) -> float:
    """By how much the first output of the policy rose in a step of Adam on one row."""
    found = updated(config, flat(config, online, online, slopes=slopes), rows([0.0], [0.0]))
    return float(found["policy"].head.bias[0])


def rise(gradient: float) -> float:
    """Adam's first step up a gradient."""
    return RATE * gradient / (abs(gradient) + EPSILON)


def test_the_policy_climbs_the_least_of_the_means_and_not_the_mean_of_the_least():
    """Curves (−4, 6), slopes (1, 1), and (0, 4), slopes (−1, −1): means 1 and 2, so the first is climbed, up. The
    least at each level is (−4, 4), with one slope of each, and would not be climbed at all. With the second curve at
    (−2, 1), of mean −½, that one is climbed, down. The critics' own step before changes slopes by less than a tenth.
    """
    slopes = [[1.0, 1.0], [-1.0, -1.0]]
    for second, slope in (([0.0, 4.0], 1), ([-2.0, 1.0], -1)):
        assert climbed(HAND_DSAC, [[-4.0, 6.0], second], slopes) == pytest.approx(rise(slope), abs=0.1 * RATE)


def test_entropy_pushes_the_policy_towards_width():
    """At mean 0, log-deviation 0 and draw 0, −log π has slope 1 in each log-deviation: the policy climbs α of it."""
    state = flat(HAND_TQC, [[0.0, 0.0]] * 3, [[0.0, 0.0]] * 3)
    for alpha in (1e-9, 0.5, 2.0):
        found = updated(HAND_TQC, with_temperature(state, alpha), rows([0.0], [0.0]))
        np.testing.assert_allclose(found["policy"].head.bias, [0, 0, rise(alpha), rise(alpha)], atol=1e-6)


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_a_temperature_rises_where_entropy_is_below_what_is_wanted(alpha):
    """Entropy is log 2π + 2 log σ = 1.838 + 2 log σ, and minus the number of components, −2, is wanted: with

    log σ = −3 (−4.16) the temperature rises, with 0 or 1 it falls. The gradient of −log α (log π + wanted) is
    entropy − wanted, whatever α is.
    """
    for log_std, sign in ((-3.0, 1), (0.0, -1), (1.0, -1)):
        policy = (0, 0, log_std, log_std)
        state = with_temperature(flat(HAND_TQC, [[0.0, 0.0]] * 3, [[0.0, 0.0]] * 3, policy=policy), alpha)
        after = updated(HAND_TQC, state, rows([0.0], [0.0]))["log temperature"]
        step = rise(-(ENTROPY + 2 * log_std + 2))
        assert np.sign(step) == sign
        assert float(after) - np.log(alpha) == pytest.approx(step, abs=1e-5)


def test_a_fixed_temperature_is_no_parameter():
    assert prepared(SAC)[1].params.log_temperature is None
    assert updated(SAC, in_the_midst(SAC), transitions())["log temperature"] is None


# Where the estimator counts.


def test_qem_enters_the_policys_q_and_nothing_else():
    """Equal parameters, equal transitions: equal critics and target critics, bit for bit, and another policy."""
    batch = transitions()
    state = in_the_midst(DSAC)
    assert difference(state, in_the_midst(QEM_DSAC)) == 0
    mean, qem = (updated(config, state, batch) for config in (DSAC, QEM_DSAC))
    for part in ("losses", "critics", "target critics"):
        assert difference(mean[part], qem[part]) == 0
    assert difference(mean["policy"], qem["policy"]) > 1e-4


SKEWED, CONSTANT = [0.0] * 7 + [8.0], [1.1] * 8
"""Means 1 and 1.1; by QEM of order 4 the former is 8 · 0.1587 = 1.27."""


def test_with_the_smallest_critic_the_estimator_enters_the_target():
    """The mean takes the skewed curve for the smaller, QEM the constant one."""
    no_entropy = FixedTemperature(0.0)
    base = replace(HAND_SAC, representation=FixedQuantiles(8), ensemble=SmallestCritic(), temperature=no_entropy)
    levels, online = (np.arange(8) + 0.5) / 8, [[0.5] * 8, [0.5] * 8]
    for estimator, goal in ((EmpiricalMean(), SKEWED), (QEM(order=4), CONSTANT)):
        config = replace(base, estimator=estimator)
        losses = updated(config, flat(config, online, [SKEWED, CONSTANT]), rows([0.0], [1.0]))["losses"]
        wanted = 2 * pinball(levels, [0.5] * 8, goal, [1 / 8] * 8)
        assert float(losses[0]) == pytest.approx(wanted, rel=1e-5)


def test_a_risk_measure_in_training_turns_the_policy_round():
    """Slopes −1, −1, 2, 4 of the quantiles: their mean is 1, that of the lower half −1."""
    config = replace(HAND_DSAC, representation=FixedQuantiles(4), estimator=CVaR(0.5))
    found = climbed(config, [[-0.3, -0.1, 0.1, 0.3]] * 2, [[-1.0, -1.0, 2.0, 4.0]] * 2)
    assert found == pytest.approx(rise(-1), abs=0.15 * RATE)
