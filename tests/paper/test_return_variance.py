"""The standard deviations that quantiles give, the truth that they are held against, and what is measured of them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtri

from qemrl.agents.presets import make_agent
from qemrl.agents.value import NetworkConfig, ValueConfig
from qemrl.envs.jax.env import JaxEnv, Outcome
from qemrl.envs.jax.probes import REWARD_STD
from qemrl.envs.jax.registry import make_jax_env
from qemrl.estimators import midpoints
from qemrl.exploration import ActionContext, EpsilonGreedy, LeftTruncatedStdBonus
from qemrl.paper import agent_runs
from qemrl.paper.items.return_variance import LEAST, Study, bias, error, rank_correlation
from qemrl.paper.items.return_variance_study import (
    NEGLIGIBLE,
    QUANTITIES,
    Places,
    Player,
    Table,
    configure_agent,
    estimate_stds,
    find_places,
    greedy_quantiles,
    learn_quantiles,
    log_std_error,
    return_variances,
    sample_greedy_returns,
    train_player,
)
from qemrl.tabular import Learning, Quantiles, Steps, chain, frozen_lake, make_mdp, return_distribution, solve
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.config import RunConfig
from qemrl.types import EnvSpec, ReturnDist


def test_stds_of_five_quantiles_by_hand():
    """Plain: mean 2, squares 4, 1, 0, 1, 4. DLTV: 0, 1 and 4 above the median, a fifth of a half of them."""
    found = estimate_stds(np.arange(5.0))
    assert tuple(found) == QUANTITIES
    assert found["plain"] == pytest.approx(np.sqrt(2))
    assert found["DLTV"] == pytest.approx(np.sqrt(5 / 10))
    assert found["DLTV ×4"] == pytest.approx(np.sqrt(2))


def test_stds_of_an_even_number_of_quantiles_by_hand():
    """The median is the second of four, 1: above it are 2 and 6, so DLTV² = (1 + 25) / 8."""
    found = estimate_stds(np.array([6.0, 0.0, 2.0, 1.0]))
    assert found["DLTV"] == pytest.approx(np.sqrt(26 / 8))
    assert found["plain"] == pytest.approx(np.sqrt((0 + 1 + 4 + 36) / 4 - 2.25**2))


def test_qem_finds_the_coefficients_of_its_own_curve():
    """1 + 2z + 0.3 (z² − 1) + 0.1 (z³ − 3z) has the variance 4 + 2·0.3² + 6·0.1², of which c₁ is the 4."""
    z = ndtri(midpoints(32))
    found = estimate_stds(1 + 2 * z + 0.3 * (z**2 - 1) + 0.1 * (z**3 - 3 * z))
    assert found["QEM"] == pytest.approx(np.sqrt(4 + 2 * 0.09 + 6 * 0.01))
    assert found["QEM c₁"] == pytest.approx(2)


@pytest.mark.parametrize("distribution", [ndtri, lambda t: t, lambda t: np.sign(t - 0.5) * (t - 0.5) ** 2])
def test_four_times_dltv_is_the_variance_of_symmetric_quantiles(distribution):
    """Exactly where the median is one of the quantiles, else up to the step from it to the next."""
    odd, even = (estimate_stds(distribution(midpoints(count))) for count in (51, 2000))
    assert odd["DLTV ×4"] == pytest.approx(odd["plain"])
    assert even["DLTV ×4"] == pytest.approx(even["plain"], rel=2e-3)
    assert odd["DLTV"] ** 2 == pytest.approx(odd["plain"] ** 2 / 4)


def test_four_times_dltv_is_not_the_variance_of_skewed_quantiles():
    """Exponential: m = log 2, E(Z − m)₊² = ½ · 2, so that four times DLTV's variance is 2 and not 1."""
    found = estimate_stds(-np.log1p(-midpoints(200_000)))
    assert found["DLTV ×4"] ** 2 == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("count", [5, 8, 51])
def test_dltv_is_the_bonus_of_the_agents(count):
    values = np.random.default_rng(0).normal(size=(7, count))
    dist = ReturnDist(jnp.asarray(values[:, None, None], jnp.float32), midpoints(count))
    context = ActionContext(None, dist, jnp.zeros((7, 1, 1)), None, jnp.zeros(7, bool), jnp.int32(0))
    bonus = LeftTruncatedStdBonus()((), context)
    np.testing.assert_allclose(estimate_stds(values)["DLTV"], np.asarray(bonus)[:, 0], rtol=1e-5)


def test_the_variance_of_a_return_by_hand():
    """State 1 pays 0 or 2; state 0 pays 1 and goes there or ends: Var(1) = 1, Var(0) = ½ · ¼ · (1 + 1) − ¼ · ¼."""
    last = [(0.5, 0, 0.0, True), (0.5, 0, 2.0, True)]
    mdp = make_mdp([[[(0.5, 1, 1.0, False), (0.5, 0, 1.0, True)]], [last]], discount=0.5)
    np.testing.assert_allclose(return_variances(mdp, np.zeros(2, np.int64)), [0.25 - 0.0625, 1.0])


def test_exact_variances_are_those_of_the_distribution():
    lake = frozen_lake()
    even = np.full((16, 4), 0.25)
    for policy, state in ((solve(lake).policy, 0), (solve(lake).policy, 5), (even, 14)):
        truth = return_distribution(lake, policy, state).variance
        assert return_variances(lake, policy)[state] == pytest.approx(truth, abs=1e-9)


def test_the_chain_has_the_variance_of_its_reward():
    process = chain(4, 0.9)
    std = process.reward_distributions[0].distribution.std
    np.testing.assert_allclose(
        np.sqrt(return_variances(process, np.zeros(4, np.int64))), std * 0.9 ** np.array([3, 2, 1, 0])
    )


def test_learned_quantiles_are_those_of_the_policys_actions():
    """Action 1 pays 1, action 0 nothing; all quantiles come to the reward of the policy's action."""
    mdp = make_mdp([[[(1.0, 1, 0.0, False)], [(1.0, 1, 1.0, False)]]] + [[[(1.0, 0, 0.0, True)]] * 2], 0.5)
    values = learn_quantiles(
        mdp, np.array([1, 0]), Learning(Quantiles(4), 5_000, Steps((0.01,))), np.arange(2), lambda _: None
    )
    assert values.shape == (2, 2, 4)
    np.testing.assert_allclose(values, np.broadcast_to([[[1.0], [0.0]]], values.shape), atol=0.05)


def coin(stop: float) -> JaxEnv:
    """Pays 1 or 0 by a fair coin at each step, and ends with the chance `stop`; what is seen is how many there were."""

    def seen(state):
        return state.astype(jnp.float32)[None] / 100

    def step(state, action, key):
        del action
        heads, ends = jax.random.bernoulli(key, 0.5), jax.random.bernoulli(jax.random.fold_in(key, 1), stop)
        return Outcome(state + 1, seen(state + 1), heads.astype(jnp.float32), ends, jnp.bool_(False))

    spec = EnvSpec("coin", (1,), "float32", 2, observation_low=(-1.0,), observation_high=(1.0,))
    return JaxEnv(spec, lambda _: (jnp.int32(0), seen(jnp.int32(0))), step, lambda _: np.zeros((1, 1, 3)))


def player_of(env: JaxEnv, discount: float) -> Player:
    config = replace(configure_agent("probe/4", 0, 0).agent, network=NetworkConfig(widths=(4,)))
    agent = make_agent(config, env.spec)
    return Player(agent, agent.init(jax.random.key(0)).params, env, discount)


def returns_of(env: JaxEnv, discount: float, places: int, count: int) -> np.ndarray:
    table = Table(player_of(env, discount), places, count)
    start = Places(*jax.vmap(env.reset)(jax.random.split(jax.random.key(1), places)))
    shares = []
    returns = sample_greedy_returns(table, start, jax.random.key(2), shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert returns.shape == (places, count)
    return returns


def test_rollouts_have_the_variance_of_a_known_process():
    """With m = ½ / (1 − γp) and p = 1 − stop: Var = ¼ + p γ² (Var + m²) − (γ p m)²."""
    discount, going = 0.9, 0.8
    mean = 0.5 / (1 - discount * going)
    truth = (0.25 + going * discount**2 * mean**2 - (discount * going * mean) ** 2) / (1 - going * discount**2)
    returns = returns_of(coin(1 - going), discount, 16, 500)
    assert returns.mean() == pytest.approx(mean, rel=0.03)
    assert returns.var() == pytest.approx(truth, rel=0.06)
    np.testing.assert_allclose(returns.std(-1), np.sqrt(truth), rtol=4 * log_std_error(returns).max())


def test_rollouts_stop_where_the_discount_is_negligible():
    """Without an end the coins of the first steps count alone: Var = ¼ Σ_{t<T} γ^2t, T from γ^T < 10⁻³ on."""
    discount = 0.5
    horizon = int(np.ceil(np.log(NEGLIGIBLE) / np.log(discount)))
    returns = returns_of(coin(0.0), discount, 16, 250)
    steps = 2.0 ** (horizon - 1)
    np.testing.assert_array_equal(returns * steps, np.round(returns * steps))
    assert not np.array_equal(returns * steps / 2, np.round(returns * steps / 2))
    assert returns.var() == pytest.approx(0.25 * (1 - discount ** (2 * horizon)) / (1 - discount**2), rel=0.06)


def test_rollouts_of_the_probe_with_a_random_reward():
    returns = returns_of(make_jax_env("probe/7"), 0.99, 3, 1_000)
    np.testing.assert_allclose(returns.std(-1), REWARD_STD, rtol=0.1)
    assert len(np.unique(returns)) == returns.size


def test_places_are_states_that_look_different():
    """All four games are at 1 after a step, at 2 after two, and so on: there are three states, or more than four."""
    table = Table(player_of(coin(0.0), 0.99), 4, 1)
    few, number = find_places(table, jax.random.key(0), 3, np.random.default_rng(0))
    assert number == 3
    assert set(few.states.tolist()) == {1, 2, 3}
    assert few.states[3] == few.states[0]
    many, number = find_places(table, jax.random.key(0), 50, np.random.default_rng(0))
    assert number == len(set(many.states.tolist())) == 4
    np.testing.assert_allclose(many.observations[:, 0] * 100, many.states, rtol=1e-6)
    assert not np.array_equal(
        many.states, find_places(table, jax.random.key(0), 50, np.random.default_rng(1))[0].states
    )


class Pretence(CompiledLoop):
    """A run that only counts its steps."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.step, self.agent = config, 0, "learner"  # type: ignore[assignment]

    def advance(self, until, evaluate, stop=lambda: False, keep_sums=False):
        assert not evaluate
        assert not keep_sums
        assert not stop()
        self.step = until
        return []

    def params(self, index):
        return ("learned", index)


def test_an_agent_is_trained_to_the_end_of_its_run(monkeypatch):
    monkeypatch.setattr(agent_runs, "make_loop", Pretence)
    config, shares = configure_agent("probe/4", 2_000, 7_000), []
    player = train_player(config, True, shares.append)
    assert (config.seed, config.num_seeds, config.preset) == (7_000, 1, "qr-dqn")
    assert isinstance(config.agent, ValueConfig)
    assert config.agent.exploration == EpsilonGreedy(begin_steps=500, over_steps=500)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert (player.agent, player.params, player.discount) == ("learner", ("learned", 0), 0.99)


def test_quantiles_are_those_of_the_greedy_action():
    player = player_of(make_jax_env("probe/4"), 0.99)
    observations = jnp.linspace(-1, 1, 6, dtype=jnp.float32)[:, None]
    values = np.asarray(player.agent.predict_distribution(player.params, observations).values)[:, 0]
    best = values.mean(-1).argmax(-1)
    np.testing.assert_array_equal(player.act(observations), best)
    np.testing.assert_allclose(greedy_quantiles(player, observations), values[np.arange(6), best], rtol=1e-5)


def test_measures_by_hand():
    truth, estimate = np.array([[1.0, 2.0, 3.0]]), np.array([[np.e, 2.0, 3 / np.e]])
    np.testing.assert_allclose(bias(truth, estimate), [0], atol=1e-12)
    np.testing.assert_allclose(error(truth, estimate), [np.sqrt(2 / 3)])
    np.testing.assert_allclose(rank_correlation(truth, np.array([[1.0, 9.0, 4.0]])), [0.5])
    np.testing.assert_array_equal(rank_correlation(truth, np.ones((1, 3))), [0])
    np.testing.assert_allclose(error(np.ones((2, 1)), np.array([[0.0], [1.0]])), [np.log(1_000), 0])


def test_the_error_of_a_sampled_standard_deviation():
    """Of a normal distribution 1 / √(2n), by its kurtosis of 3."""
    returns = np.random.default_rng(0).normal(size=(500, 400))
    errors = log_std_error(returns)
    assert errors.mean() == pytest.approx(1 / np.sqrt(800), rel=0.02)
    assert np.log(returns.std(-1)).std() == pytest.approx(errors.mean(), rel=0.1)


def test_a_study_leaves_out_states_without_variance():
    values = np.random.default_rng(0).normal(size=(4, 7, 16))
    study = Study.from_quantiles("here", values, np.array([1.0, 0.0, 2.0, 0.01, 3.0, 4.0, 5.0]))
    assert study.enough
    np.testing.assert_array_equal(study.truth, [1, 2, 3, 4, 5])
    np.testing.assert_allclose(study.estimates["plain"], estimate_stds(values)["plain"][:, [0, 2, 4, 5, 6]])
    few = Study.from_quantiles("there", values, np.array([0.0, 9.0, 0.01, 0.0, 0.02, 0.03, 0.04]))
    assert not few.enough
    assert len(few.truth) == LEAST
    np.testing.assert_array_equal(few.truth, [9, 0.01, 0.02, 0.03, 0.04])


def test_intervals_are_over_runs_or_over_states():
    rng = np.random.default_rng(0)
    truth = np.linspace(1, 2, 200)
    estimates = {name: truth * np.exp(rng.normal(0.1, 0.3, size=(6, 200))) for name in QUANTITIES}
    runs = Study("x", 32, truth, estimates).interval(lambda t, e: bias(t, e["QEM"]))
    one = Study("x", 32, truth, {name: each[:1] for name, each in estimates.items()})
    states = one.interval(lambda t, e: bias(t, e["QEM"]))
    assert runs.low < 0.1 < runs.high
    assert states.high - states.low == pytest.approx(2 * 1.96 * 0.3 / np.sqrt(200), rel=0.15)
