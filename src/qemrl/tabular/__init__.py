"""The tabular laboratory: small processes, the exact truth about them, and learners to hold against it."""

from qemrl.tabular.discrete_distribution import DiscreteDistribution, cramer, wasserstein
from qemrl.tabular.exact import Policy, Solution, policy_values, return_distribution, sample_returns, solve
from qemrl.tabular.fixed_points import (
    categorical_fixed_point,
    expectile_fixed_point,
    expectile_levels,
    expectiles,
    impute,
    quantile_fixed_point,
)
from qemrl.tabular.learning import History, Learning, learn
from qemrl.tabular.mdp import (
    Outcome,
    TabularMDP,
    chain,
    from_gymnasium,
    frozen_lake,
    make_mdp,
    random_mdp,
    toy_exponential,
    toy_uniform,
)
from qemrl.tabular.measure import (
    Decomposition,
    as_distribution,
    decompose,
    start_distances,
    start_error,
    temporal_std,
)
from qemrl.tabular.representations import Categories, Expectiles, Quantiles, Representation, Scalar
from qemrl.tabular.rewards import RewardDistribution, exponential, normal_mixture_reward, uniform
from qemrl.tabular.schedules import Geometric, Steps

__all__ = [
    "Categories",
    "Decomposition",
    "DiscreteDistribution",
    "Expectiles",
    "Geometric",
    "History",
    "Learning",
    "Outcome",
    "Policy",
    "Quantiles",
    "Representation",
    "RewardDistribution",
    "Scalar",
    "Solution",
    "Steps",
    "TabularMDP",
    "as_distribution",
    "categorical_fixed_point",
    "chain",
    "cramer",
    "decompose",
    "expectile_fixed_point",
    "expectile_levels",
    "expectiles",
    "exponential",
    "from_gymnasium",
    "frozen_lake",
    "impute",
    "learn",
    "make_mdp",
    "normal_mixture_reward",
    "policy_values",
    "quantile_fixed_point",
    "random_mdp",
    "return_distribution",
    "sample_returns",
    "solve",
    "start_distances",
    "start_error",
    "temporal_std",
    "toy_exponential",
    "toy_uniform",
    "uniform",
    "wasserstein",
]
