"""The model card: a README.md with the front matter that the Hugging Face hub reads."""

import json
import re
from collections.abc import Sequence

from qemrl.api import Evaluation, TrainableAgent
from qemrl.config.describe import list_settings
from qemrl.export.program import FORMATS, Format, Policy

FRONT_MATTER = """---
library_name: qemrl
pipeline_tag: reinforcement-learning
tags:
- reinforcement-learning
- deep-reinforcement-learning
- qemrl
- {env}
- {preset}
model-index:
- name: {preset}
  results:
  - task:
      type: reinforcement-learning
      name: reinforcement-learning
    dataset:
      name: {env}
      type: {env}
    metrics:
    - type: mean_reward
      name: mean_reward
      value: {reward}
      verified: false
---
"""
"""YAML, of which JSON's texts are a part."""

USE: dict[Format, str] = {
    "stablehlo": """import jax.export, pathlib
program = jax.export.deserialize(bytearray(pathlib.Path("policy.stablehlo").read_bytes()))
{outputs} = program.call({inputs})""",
    "onnx": """import onnxruntime
session = onnxruntime.InferenceSession("policy.onnx")
{outputs} = session.run(None, {{{named}}})""",
}
"""Three lines that load a program and run it."""


def write_card(
    agent: TrainableAgent, policy: Policy, formats: Sequence[Format], evaluation: Evaluation, caption: str
) -> str:
    """The text of the card; its figure is figure.png."""
    config = agent.config
    mean, std = evaluation.mean, float(evaluation.returns.std())
    # The hub's leaderboards read `+/-`.
    quoted = {"env": config.env, "preset": config.preset, "reward": f"{mean:.2f} +/- {std:.2f}"}
    front = FRONT_MATTER.format(**{name: json.dumps(text) for name, text in quoted.items()})
    inputs, outputs = ([each.name for each in tensors] for tensors in (policy.inputs, policy.outputs))
    variables = [re.sub(r"\W|^(?=\d)", "_", name) for name in inputs]
    named = ", ".join(f"{json.dumps(name)}: {variable}" for name, variable in zip(inputs, variables, strict=True))
    parts = {"inputs": ", ".join(variables), "outputs": ", ".join(outputs), "named": named}
    programs = "\n\n".join(
        f"`{FORMATS[name].file}`:\n\n```python\n{USE[name].format(**parts)}\n```" for name in formats
    )
    tensors = "\n".join(
        f"| {kind} | `{each.name}` | {', '.join(map(str, each.shape))} | {each.dtype} |"
        for kind, those in (("input", policy.inputs), ("output", policy.outputs))
        for each in those
    )
    settings = "\n".join(
        f"| `{setting.name}` | {setting.default} |" for group in list_settings(config) for setting in group.settings
    )
    return f"""{front}
# {config.preset} on {config.env}

An agent of qemrl, seed {config.seed}, after {agent.steps:,} steps. Mean reward of {len(evaluation.returns)} evaluation
episodes: **{mean:.2f} ± {std:.2f}**.

![{caption}](figure.png)

## Use

The greedy policy as a program that needs no qemrl. `policy.json` has all that is below, the levels and the
probabilities of the values, and what actions mean.

{programs}

| | name | shape | dtype |
|---|---|---|---|
{tensors}

## Settings

| setting | value |
|---|---|
{settings}
"""
