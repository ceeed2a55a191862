"""QR-DQN and TQC of sb3-contrib, with any estimator or risk measure of ours in the place of the mean (extra `sb3`).

    from qemrl.integrations.sb3 import QEMQRDQN

    model = QEMQRDQN("MlpPolicy", "CartPole-v1", estimator=qemrl.QEM(order=4)).learn(50_000)

All else is as in the parents: settings, `save`, `load`, `predict`, callbacks. With `qemrl.EmpiricalMean()` so is what
they learn.
"""

from qemrl.extras import require_extra

require_extra("sb3", "qemrl.integrations.sb3")

import math
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
import torch
from sb3_contrib import QRDQN, TQC
from sb3_contrib.common.utils import quantile_huber_loss
from sb3_contrib.qrdqn import policies
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import polyak_update
from torch import Tensor

import qemrl.torch
from qemrl.estimators import QEM, Statistic

Exploration = Literal["epsilon-greedy", "dltv", "qem-std-bonus"]

DEFAULT = QEM()


class EstimatingNetwork(policies.QuantileNetwork):
    """A quantile network whose greedy action is by an estimator."""

    def __init__(self, *args: Any, estimator: Statistic = DEFAULT, **options: Any) -> None:
        super().__init__(*args, **options)
        self.estimator = estimator
        self.estimate = qemrl.torch.make_module(estimator, self.n_quantiles)

    def q_values(self, quantiles: Tensor) -> Tensor:
        """Q (batch, actions) of quantiles (batch, n, actions)."""
        return self.estimate(quantiles.transpose(1, 2))

    def _predict(self, observation: Any, deterministic: bool = True) -> Tensor:
        del deterministic
        return self.q_values(self(observation)).argmax(dim=1)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"estimator": self.estimator}


class _EstimatingPolicy(policies.QRDQNPolicy):
    def __init__(self, *args: Any, estimator: Statistic = DEFAULT, **options: Any) -> None:
        self.estimator = estimator  # before the parent's, which makes the networks
        super().__init__(*args, **options)

    def make_quantile_net(self) -> EstimatingNetwork:
        """A network with a feature extractor of its own."""
        options = self._update_features_extractor(self.net_args, features_extractor=None)
        return EstimatingNetwork(**options, estimator=self.estimator).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"estimator": self.estimator}


class MlpPolicy(_EstimatingPolicy, policies.MlpPolicy):
    """For vectors."""


class CnnPolicy(_EstimatingPolicy, policies.CnnPolicy):
    """For images."""


class MultiInputPolicy(_EstimatingPolicy, policies.MultiInputPolicy):
    """For dictionaries."""


class QEMQRDQN(QRDQN):
    """QR-DQN of sb3-contrib in which Q, in acting and in the target's greedy action, is by an estimator of ours."""

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }

    def __init__(
        self,
        policy: str | type[policies.QRDQNPolicy],
        env: Any,
        *,
        estimator: Statistic = DEFAULT,
        exploration: Exploration = "epsilon-greedy",
        bonus_scale: float = 50.0,
        policy_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """The agent.

        Args:
            policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy", or a class derived from those of this module.
            env: The environment.
            estimator: How quantiles become Q: an estimator or a risk measure of `qemrl`.
            exploration: The parent's, or the action with the largest Q + c_t σ in training, with DLTV's standard
                deviation above the median, or with that of QEM's fit.
            bonus_scale: c of c_t = c √(log t / t).
            policy_kwargs: As the parent's.
            options: As the parent's.

        Raises:
            ValueError: The policy is not one of these, or the estimator does not fit the number of quantiles.
        """
        if isinstance(policy, type) and not issubclass(policy, _EstimatingPolicy):
            raise ValueError(
                f"{policy.__name__} takes the plain mean; give 'MlpPolicy', 'CnnPolicy' or 'MultiInputPolicy', or a "
                "class derived from one of those in qemrl.integrations.sb3"
            )
        if exploration not in get_args(Exploration):
            raise ValueError(f"exploration must be one of {', '.join(get_args(Exploration))}; got {exploration!r}")
        if not (math.isfinite(bonus_scale) and bonus_scale >= 0):
            raise ValueError(f"bonus_scale must be finite and not negative, got {bonus_scale}")
        self.estimator, self.exploration, self.bonus_scale = estimator, exploration, bonus_scale
        super().__init__(policy, env, policy_kwargs={**(policy_kwargs or {}), "estimator": estimator}, **options)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Gradient steps on the quantile Huber loss (algorithm 1 of Dabney et al., 2018)."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = [self._learn_from_batch(batch_size) for _ in range(gradient_steps)]
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))

    def _learn_from_batch(self, batch_size: int) -> float:
        assert self.replay_buffer is not None
        batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
        predicted = _select(self.quantile_net(batch.observations), batch.actions)
        loss = quantile_huber_loss(predicted, self.bellman_target(batch), sum_over_quantiles=True)
        self.policy.optimizer.zero_grad()
        loss.backward()
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def bellman_target(self, batch: Any) -> Tensor:
        """The quantiles (batch, n) of r + γ Z(s', a*), a* being the action with the largest estimate."""
        network = cast("EstimatingNetwork", self.quantile_net_target)
        quantiles = network(batch.next_observations)
        greedy = network.q_values(quantiles).argmax(dim=1, keepdim=True)
        discounts = self.gamma if batch.discounts is None else batch.discounts
        return batch.rewards + (1 - batch.dones) * discounts * _select(quantiles, greedy)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """The greedy action, or, unless `deterministic`, one that explores."""
        if deterministic or self.exploration == "epsilon-greedy":
            return super().predict(observation, state, episode_start, deterministic)
        self.policy.set_training_mode(False)
        tensors, vectorized = self.policy.obs_to_tensor(observation)
        with torch.no_grad():
            actions = self.optimistic_values(tensors).argmax(dim=1).cpu().numpy()
        return (actions if vectorized else actions.squeeze(axis=0)), state

    def optimistic_values(self, observations: Any) -> Tensor:
        """Q + c_t σ (batch, actions)."""
        network, step = cast("EstimatingNetwork", self.quantile_net), max(self.num_timesteps, 1)
        quantiles = network(observations)
        factor = self.bonus_scale * math.sqrt(math.log(step) / step)
        return network.q_values(quantiles) + factor * self._std(quantiles.transpose(1, 2))

    def _std(self, quantiles: Tensor) -> Tensor:
        if self.exploration == "dltv":
            return qemrl.torch.left_truncated_std(quantiles)
        return qemrl.torch.QEM(quantiles.shape[-1], device=quantiles.device).moments(quantiles).variance.sqrt()


class QEMTQC(TQC):
    """TQC of sb3-contrib in which the policy maximizes the mean over critics of an estimator of ours."""

    def __init__(self, policy: Any, env: Any, *, estimator: Statistic = DEFAULT, **options: Any) -> None:
        """The agent; `estimator` is an estimator or a risk measure of `qemrl`, all else is the parent's."""
        self.estimator = estimator
        super().__init__(policy, env, **options)

    def _setup_model(self) -> None:
        super()._setup_model()
        count = self.critic.quantiles_total // self.critic.n_critics
        self.estimate = qemrl.torch.make_module(self.estimator, count, device=self.device)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "estimate"]

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Gradient steps on temperature, critics and policy (algorithm 1 of Kuznetsov et al., 2020)."""
        self.policy.set_training_mode(True)
        optimizers = [self.actor.optimizer, self.critic.optimizer, self.ent_coef_optimizer]
        self._update_learning_rate([each for each in optimizers if each is not None])
        records: list[dict[str, float]] = []
        for step in range(gradient_steps):
            records.append(self._learn_from_batch(batch_size))
            if step % self.target_update_interval == 0:
                polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
                polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name in records[0] if records else ():
            self.logger.record(f"train/{name}", np.mean([record[name] for record in records]))

    def _learn_from_batch(self, batch_size: int) -> dict[str, float]:
        assert self.replay_buffer is not None
        batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
        if self.use_sde:
            self.actor.reset_noise()
        actions, log_prob = self.actor.action_log_prob(batch.observations)
        log_prob = log_prob.reshape(-1, 1)
        temperature, record = self._learn_temperature(log_prob)
        loss = quantile_huber_loss(
            self.critic(batch.observations, batch.actions),
            self.bellman_target(batch, temperature),
            sum_over_quantiles=False,
        )
        _descend(self.critic.optimizer, loss)
        q = self.estimate(self.critic(batch.observations, actions)).mean(dim=1, keepdim=True)
        policy_loss = (temperature * log_prob - q).mean()
        _descend(self.actor.optimizer, policy_loss)
        return {
            "ent_coef": temperature.item(),
            "actor_loss": policy_loss.item(),
            "critic_loss": loss.item(),
            **record,
        }

    def _learn_temperature(self, log_prob: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The temperature before its step, if it is learned, and what there is to log."""
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            return self.ent_coef_tensor, {}
        temperature = self.log_ent_coef.detach().exp()
        assert not isinstance(self.target_entropy, str)
        loss = -(self.log_ent_coef * (log_prob + self.target_entropy).detach()).mean()
        _descend(self.ent_coef_optimizer, loss)
        return temperature, {"ent_coef_loss": loss.item()}

    @torch.no_grad()
    def bellman_target(self, batch: Any, temperature: Tensor) -> Tensor:
        """The pooled quantiles (batch, 1, m) of the next state, less the largest and the entropy, backed up."""
        actions, log_prob = self.actor.action_log_prob(batch.next_observations)
        quantiles = self.critic_target(batch.next_observations, actions)
        kept = self.critic.quantiles_total - self.top_quantiles_to_drop_per_net * self.critic.n_critics
        pooled = quantiles.flatten(1).sort().values[:, :kept] - temperature * log_prob.reshape(-1, 1)
        discounts = self.gamma if batch.discounts is None else batch.discounts
        return (batch.rewards + (1 - batch.dones) * discounts * pooled)[:, None, :]


def _select(quantiles: Tensor, actions: Tensor) -> Tensor:
    """The quantiles (batch, n) of one action (batch, 1), of quantiles (batch, n, actions)."""
    return quantiles.gather(2, actions[:, None, :].long().expand(-1, quantiles.shape[1], 1)).squeeze(2)


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
