"""A whole QR-DQN in PyTorch on CartPole, in which the estimator of Q is one argument.

python examples/pytorch_qr_dqn.py --estimator qem --steps 30000

It needs PyTorch, Gymnasium and the estimators of qemrl, and nothing else of qemrl's.
"""

import argparse
from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

import qemrl
import qemrl.torch

QUANTILES, BATCH, DISCOUNT = 51, 64, 0.99


class QuantileNetwork(nn.Module):
    """Quantiles (batch, actions, n) of the return, and Q of them."""

    def __init__(self, inputs: int, actions: int, estimator: qemrl.Statistic) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, actions * QUANTILES)
        )
        self.estimate = qemrl.torch.make_module(estimator, QUANTILES)  # all that QEM takes

    def forward(self, observations: Tensor) -> Tensor:
        """The quantiles."""
        return self.layers(observations).unflatten(-1, (-1, QUANTILES))

    def greedy(self, observations: Tensor) -> Tensor:
        """The actions with the largest Q."""
        return self.estimate(self(observations)).argmax(-1)


class Replay:
    """The last transitions, from which batches are drawn."""

    def __init__(self, capacity: int, inputs: int) -> None:
        self.observations = np.zeros((2, capacity, inputs), np.float32)
        self.actions, self.rewards = np.zeros(capacity, np.int64), np.zeros(capacity, np.float32)
        self.ends, self.count = np.zeros(capacity, np.float32), 0

    def add(self, before: np.ndarray, action: int, reward: float, after: np.ndarray, end: bool) -> None:
        """Store a transition in the place of the oldest."""
        place = self.count % len(self.actions)
        self.observations[0, place], self.observations[1, place] = before, after
        self.actions[place], self.rewards[place], self.ends[place] = action, reward, end
        self.count += 1

    def sample(self, generator: np.random.Generator) -> list[Tensor]:
        """Observations, actions, rewards, ends and next observations of a batch."""
        rows = generator.integers(min(self.count, len(self.actions)), size=BATCH)
        columns = (self.observations[0], self.actions, self.rewards, self.ends, self.observations[1])
        return [torch.as_tensor(column[rows]) for column in columns]


def quantile_huber_loss(values: Tensor, target: Tensor) -> Tensor:
    """Dabney et al. (2018), equation 10, of values (batch, n) and target (batch, m)."""
    errors = target[:, None, :] - values[:, :, None]
    levels = torch.as_tensor(qemrl.midpoints(QUANTILES), dtype=values.dtype)[None, :, None]
    huber = nn.functional.huber_loss(target[:, None, :].expand_as(errors), values[:, :, None].expand_as(errors), "none")
    return ((levels - (errors.detach() < 0).to(values.dtype)).abs() * huber).mean(-1).sum(-1).mean()


def take(quantiles: Tensor, actions: Tensor) -> Tensor:
    """The quantiles (batch, n) of one action for each row."""
    return quantiles[torch.arange(len(actions)), actions]


def train(
    estimator: qemrl.Statistic, steps: int, seed: int = 0, tell: Callable[[int, float], None] = lambda *_: None
) -> QuantileNetwork:
    """Learn CartPole; `tell` is told the step and the return of each episode."""
    torch.manual_seed(seed)
    generator, env = np.random.default_rng(seed), gymnasium.make("CartPole-v1")
    network, slow = (QuantileNetwork(4, 2, estimator) for _ in range(2))
    slow.load_state_dict(network.state_dict())
    optimizer, replay = torch.optim.Adam(network.parameters(), 3e-4, eps=0.01 / BATCH), Replay(50_000, 4)
    (observation, _), total = env.reset(seed=seed), 0.0
    for step in range(1, steps + 1):
        if generator.random() < max(0.05, 1 - step / 10_000):
            action = int(generator.integers(2))
        else:
            with torch.no_grad():
                action = int(network.greedy(torch.as_tensor(observation)[None]))
        following, reward, terminated, truncated, _ = env.step(action)
        replay.add(observation, action, float(reward), following, terminated)
        observation, total = following, total + float(reward)
        if terminated or truncated:
            tell(step, total)
            (observation, _), total = env.reset(), 0.0
        if step > 1_000 and step % 2 == 0:
            before, actions, rewards, ends, after = replay.sample(generator)
            with torch.no_grad():
                best = take(slow(after), slow.greedy(after))
                target = rewards[:, None] + DISCOUNT * (1 - ends[:, None]) * best
            loss = quantile_huber_loss(take(network(before), actions), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 500 == 0:
            slow.load_state_dict(network.state_dict())
    return network


def main() -> None:
    """Learn, and print the mean return of every 20 episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--estimator", choices=tuple(qemrl.ESTIMATORS), default="qem")
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    returns: list[float] = []

    def tell(step: int, total: float) -> None:
        returns.append(total)
        if len(returns) % 20 == 0:
            print(f"step {step:,}: mean return of the last 20 episodes {np.mean(returns[-20:]):.1f}")

    train(qemrl.ESTIMATORS[given.estimator].estimator, given.steps, given.seed, tell)


if __name__ == "__main__":
    main()
