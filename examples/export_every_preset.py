"""Is the exported program of every preset its agent?

    python examples/export_every_preset.py | tee results/export.txt

Makes each preset with a small network, as it begins, exports it in both formats, and with levels as an input where it
draws them in training. The programs run on the same observations as the agent: StableHLO by JAX, ONNX by ONNX Runtime.
Prints how far actions and return distributions are from the agent's, as a share of the largest number or of one, and
ends with exit code 1 if anything is further away than 1e-5.
"""

import sys
from collections.abc import Iterator

import numpy as np

import qemrl
from qemrl.agents.names import ACTOR_CRITICS, SUMMARIES
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.export.program import FORMATS, TOLERANCE, ExportError, LevelSource, make_policy, measure_difference

STATES = 64


def measure(preset: str) -> Iterator[tuple[LevelSource, list[float]]]:
    """For each source of levels how far the program of each format is from the agent."""
    continuous = preset in ACTOR_CRITICS
    widths = ("network.policy_widths", "network.critic_widths") if continuous else ("network.widths",)
    small = dict.fromkeys(widths, (16,)) | {"replay.capacity": 1_000}
    agent = qemrl.make(preset, env="Pendulum-v1" if continuous else "CartPole-v1", overrides=small)
    shape = (STATES, *agent.spec.observation_shape)
    observations = np.random.default_rng(0).normal(size=shape).astype(agent.spec.observation_dtype)
    draws = isinstance(agent.config.agent.representation, ImplicitQuantiles)
    sources: tuple[LevelSource, ...] = ("midpoints", "input") if draws else ("midpoints",)
    for levels in sources:
        policy = make_policy(agent, levels)
        differences = []
        for each in FORMATS.values():
            try:
                program = each.load(each.write(policy), policy)
                differences.append(measure_difference(agent, policy, program, observations))
            except ExportError as error:
                print(f"{preset}: {error}", file=sys.stderr)
                differences.append(np.inf)
        yield levels, differences


def main() -> bool:
    """Whether all programs are their agents; the table is printed."""
    good = True
    print(f"{'preset':<16}{'levels':<12}" + "".join(f"{name:>12}" for name in FORMATS))
    for preset in SUMMARIES:
        for levels, differences in measure(preset):
            print(f"{preset:<16}{levels:<12}" + "".join(f"{each:>12.1e}" for each in differences), flush=True)
            good &= all(each <= TOLERANCE for each in differences)
    print(f"all within {TOLERANCE:g}" if good else f"some are further away than {TOLERANCE:g}")
    return good


if __name__ == "__main__":
    sys.exit(not main())
