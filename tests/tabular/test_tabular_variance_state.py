"""V estimated while a table is learned, against closed forms and brute force."""

import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.estimators import (
    QEM,
    CountedVariance,
    DecayingVariance,
    EstimatedVariance,
    HeadsVariance,
    ResidualVariance,
    SGDNoise,
    SparsityVariance,
    TailVariance,
    VarianceInputs,
    midpoints,
)
from qemrl.tabular import (
    Learning,
    Outcome,
    Quantiles,
    RewardDistribution,
    Steps,
    exponential,
    frozen_lake,
    learn,
    make_mdp,
    normal_mixture_reward,
)

DISTRIBUTIONS = {
    "normal": normal_mixture_reward((1.0,), (0.0,), (1.0,)),
    "exponential": exponential(1.0),
    "mixture": normal_mixture_reward((0.7, 0.3), (-2.0, 3.0), (1.0, 1.0)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_td_residuals_give_the_covariance_of_constant_step_regression(name: str):
    """a (min(s, t) − st) / (f_s + f_t), without a density being known: within 10%, scale included."""
    distribution: RewardDistribution = DISTRIBUTIONS[name]
    mdp = make_mdp([[[Outcome(1.0, 0, distribution, True)]]], 0.9, name="one state")
    model = ResidualVariance(shrinkage=0.0, full=True)
    step = 0.02
    learning = Learning(Quantiles(16, QEM(4, model)), 100_000, Steps((step,)), record_every=100_000, variance_rate=1e-6)
    variance_state = learn(mdp, learning, range(2), policy=np.zeros(1, int)).variance_state
    assert variance_state is not None
    assert variance_state.innovations is not None
    assert variance_state.curvature is not None
    truth = SGDNoise(step).covariance(distribution.distribution, midpoints(16))
    for products, density in zip(variance_state.innovations[:, 0, 0], variance_state.curvature[:, 0, 0], strict=True):
        found = step * products / (density[:, None] + density[None, :])
        assert np.linalg.norm(found - truth) < 0.1 * np.linalg.norm(truth)
        scaled = model.estimate(midpoints(16), VarianceInputs(innovations=products, curvature=density))
        np.testing.assert_allclose(scaled * np.trace(found) / 16, found, rtol=1e-4, atol=1e-6 * found.max())


MODELS: list[EstimatedVariance] = [
    DecayingVariance(TailVariance(5.0), over_steps=100),
    CountedVariance(TailVariance(5.0)),
    SparsityVariance(),
    SparsityVariance(source="twin"),
    HeadsVariance(full=True),
    ResidualVariance(),
]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_q_is_the_estimate_with_the_variance_inputs_of_each_state_and_action(model: EstimatedVariance):
    qem = QEM(2, model)
    heads = 2 if {"twin", "heads"} & set(model.needs) else 1
    representation = Quantiles(8, qem, num_heads=heads)
    mdp = frozen_lake()
    history = learn(mdp, Learning(representation, 400, record_every=400, variance_rate=0.05), [3])
    rows = history.table[0].reshape(*history.table.shape[1:3], heads, 8)
    visits = history.counts[0, -1].sum(-1)
    variance_state = history.variance_state
    assert variance_state is not None
    for s, a in [(0, 0), (4, 2), (14, 1)]:
        estimates = []
        for head in range(heads):
            variance_inputs = VarianceInputs(
                step=400,
                visits=np.float64(visits[s, a]).reshape(()),
                ema=None if variance_state.ema is None else variance_state.ema[0, s, a],
                twin=rows[s, a, head - 1],
                heads=rows[s, a],
                innovations=None if variance_state.innovations is None else variance_state.innovations[0, s, a],
                curvature=None if variance_state.curvature is None else variance_state.curvature[0, s, a],
            )
            known = VarianceInputs(
                *(None if each is None else jnp.asarray(each, jnp.float32) for each in variance_inputs)
            )
            estimates.append(qem.mean(jnp.asarray(rows[s, a, head]), midpoints(8), None, known))
        np.testing.assert_allclose(history.q[0, -1, s, a], np.mean(estimates), atol=2e-5)


def test_heads_learn_from_different_halves():
    representation = Quantiles(4, num_heads=2, low=0.0, high=1e-9)
    mdp = make_mdp([[[Outcome(1.0, 0, DISTRIBUTIONS["normal"], True)]]], 0.9, name="one state")
    learning = Learning(representation, 50, Steps((0.1,)), record_every=50)
    rows = learn(mdp, learning, range(200), policy=np.zeros(1, int)).table[:, 0, 0]
    first, second = rows[:, :4], rows[:, 4:]
    assert (first != second).any(-1).all()
    shared = np.corrcoef(first[:, 1], second[:, 1])[0, 1]
    assert 0.1 < shared < 0.9  # half of a head's transitions are the other's, too


def test_a_slow_row_is_the_mean_of_the_visits_at_first():
    mdp = make_mdp([[[Outcome(1.0, 0, DISTRIBUTIONS["normal"], True)]]], 0.9, name="one state")
    learning = Learning(Quantiles(4, QEM(2, SparsityVariance())), 20, Steps((0.1,)), record_every=1)
    history = learn(mdp, learning, [0], policy=np.zeros(1, int))
    before = np.concatenate([[np.nan * history.rows[0, 0, 0]], history.rows[0, :-1, 0]])  # the first was not recorded
    assert history.variance_state is not None
    assert history.variance_state.ema is not None
    found = 20 * history.variance_state.ema[0, 0, 0] - before[1:].sum(0)
    moved = history.rows[0, 0, 0] - found
    levels = midpoints(4)
    for size in moved / 0.1 - levels:  # one return moved every quantile up by its level or down by the rest
        assert min(abs(size), abs(size + 1)) < 1e-3
