"""Exported programs do what their agents do, where there is no qemrl."""

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qemrl
from qemrl.cli.app import main
from qemrl.export import directory, export_agent
from qemrl.export.program import FORMATS, TOLERANCE, make_policy, measure_difference
from qemrl.training.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
VALUE = {"network.widths": (8,), "replay.capacity": 100}
CRITIC = {"network.policy_widths": (8,), "network.critic_widths": (8,), "replay.capacity": 100}
ROWS = 40
LEVELS = np.sort(np.random.default_rng(1).uniform(0, 0.25, 12)).astype(np.float32)


class Pictures(gymnasium.Env):
    """Noise, and masks."""

    def __init__(self, shape: tuple[int, ...]):
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return self.observation_space.sample(), {"action_mask": np.array([1, 0, 1], np.int8)}

    def step(self, action):
        del action
        observation, info = self.reset()
        return observation, 0.0, True, False, info


class Parts(Pictures):
    """Noise of several kinds, and actions that do not count from zero."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Dict(
            {
                "arm": gymnasium.spaces.Dict({"joints": gymnasium.spaces.Box(-3, 3, (2,), np.float32)}),
                "camera": gymnasium.spaces.Box(0, 255, (5, 4, 1), np.uint8),
                "task": gymnasium.spaces.Discrete(3, start=2),
            }
        )
        self.action_space = gymnasium.spaces.Discrete(3, start=4)


gymnasium.register("Parts-v0", lambda **_: Parts())
gymnasium.register("Frames-v0", lambda **_: Pictures((4, 36, 36)))
gymnasium.register("Board-v0", lambda **_: Pictures((5, 5, 2)))

PROGRAMS = {
    "nature": ("dqn", "Frames-v0", {"network.torso": "nature"}),
    "minatar": (
        *("c51", "Board-v0"),
        {"network.hidden": (8,), "network.dueling": True, "network.layer_norm": True, "representation.num_atoms": 11},
    ),
    "parts": ("qr-dqn", "Parts-v0", {"representation.num_quantiles": 8}),
    "heads": ("qem-dqn", "CartPole-v1", {"representation.num_heads": 2, "representation.num_quantiles": 8}),
    "implicit": ("iqem-dqn", "CartPole-v1", {"representation.num_levels": 12}),
    "deterministic": ("td3", "Pendulum-v1", {}),
    "stochastic": ("dsac-iqn", "Pendulum-v1", {"representation.num_levels": 12}),
    "pooled": ("tqc", "Pendulum-v1", {"ensemble.size": 2, "representation.num_quantiles": 8}),
}
"""Every operation that programs are made of, with as few agents as have it."""

WITHOUT_QEMRL = """
import json, sys
from pathlib import Path
import numpy as np, onnxruntime
from jax import export
for folder in Path(sys.argv[1]).iterdir():
    inputs = dict(np.load(folder / "inputs.npz"))
    names = [each["name"] for each in json.loads((folder / "inputs.json").read_text())]
    program = export.deserialize(bytearray((folder / "policy.stablehlo").read_bytes()))
    np.savez(folder / "stablehlo.npz", *program.call(*(inputs[name] for name in names)))
    session = onnxruntime.InferenceSession(folder / "policy.onnx")
    np.savez(folder / "onnx.npz", *session.run(None, inputs))
assert "qemrl" not in sys.modules
"""


class Case(NamedTuple):
    agent: qemrl.TrainableAgent
    outputs: tuple
    inputs: dict[str, np.ndarray]
    found: dict[str, list[np.ndarray]]


def draw_inputs(agent: qemrl.TrainableAgent, levels: bool) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    shape, dtype = (ROWS, *agent.spec.observation_shape), agent.spec.observation_dtype
    bounds = (0, 255) if dtype == "uint8" else (-3, 3)
    inputs = {"observation": generator.uniform(*bounds, shape).astype(dtype)}
    if agent.spec.parts:
        inputs = {
            "arm.joints": generator.uniform(-3, 3, (ROWS, 2)).astype(np.float32),
            "camera": generator.integers(256, size=(ROWS, 5, 4, 1)).astype(np.uint8),
            "task": generator.integers(2, 5, size=ROWS).astype(np.int32),
        }
    if agent.spec.has_mask:
        inputs["mask"] = np.eye(3)[generator.integers(3, size=ROWS)] == 0
    if levels:
        inputs["levels"] = LEVELS
    return inputs


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[str, Case]:
    """The programs, and what they gave in a process of their own."""
    root, cases = tmp_path_factory.mktemp("programs"), {}
    for name, (preset, env, further) in PROGRAMS.items():
        small = CRITIC if env == "Pendulum-v1" else VALUE
        agent = qemrl.make(preset, env, seed=1, overrides=small | further)
        policy = make_policy(agent, "input" if "representation.num_levels" in further else "midpoints")
        folder = root / name
        folder.mkdir()
        inputs = draw_inputs(agent, policy.inputs[-1].name == "levels")
        np.savez(folder / "inputs.npz", allow_pickle=False, **inputs)
        (folder / "inputs.json").write_text(json.dumps([each._asdict() for each in policy.inputs]))
        for each in FORMATS.values():
            (folder / each.file).write_bytes(each.write(policy))
        cases[name] = Case(agent, policy.outputs, inputs, {})
    subprocess.run([sys.executable, "-c", WITHOUT_QEMRL, str(root)], check=True)
    for name, case in cases.items():
        for each in FORMATS:
            case.found[each] = list(np.load(root / name / f"{each}.npz").values())
    return cases


def expect(agent: qemrl.TrainableAgent, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The action and the distributions, at levels that are an input by the network itself."""
    observation: Any = inputs.get("observation")
    if observation is None:
        observation = {"arm": {"joints": inputs["arm.joints"]}, "camera": inputs["camera"], "task": inputs["task"]}
    if "levels" not in inputs:
        action = agent.predict(observation, mask=inputs.get("mask"))
        return {"action": action, **agent.predict_distribution(observation)._asdict()}
    levels = jnp.asarray(LEVELS)[None]
    if agent.spec.box is None:
        network = agent.params.network
        values = np.asarray(network.head(network.torso(jnp.asarray(observation)), levels, None)).swapaxes(1, 2)
        q = agent.config.agent.estimator.mean(values.astype(np.float64), LEVELS.astype(np.float64))
        return {"action": np.asarray(q).argmax(-1), "values": values}
    action = agent.predict(observation)
    features = [critic.torso(jnp.asarray(observation), jnp.asarray(action / 2)) for critic in agent.params.critics]
    heads = [critic.head for critic in agent.params.critics]
    values = [head(each, levels, None).swapaxes(1, 2) for head, each in zip(heads, features, strict=True)]
    return {"action": action, "values": np.concatenate(values, axis=-1)}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_gives_the_actions_and_distributions_of_its_agent(cases, program, form):
    agent, outputs, inputs, found = cases[program]
    expected = expect(agent, inputs)
    assert len(found[form]) == len(outputs)
    for tensor, array in zip(outputs, found[form], strict=True):
        assert array.shape == (ROWS, *tensor.shape[1:])
        assert array.dtype == tensor.dtype
        assert np.unique(array).size > 1
        np.testing.assert_allclose(array, expected[tensor.name], rtol=1e-5, atol=1e-5, err_msg=tensor.name)


def test_the_command_for_every_preset_measures_both_formats():
    program = runpy.run_path(str(ROOT / "examples" / "export_every_preset.py"))
    ((levels, differences),) = program["measure"]("dqn")
    assert levels == "midpoints"
    assert len(differences) == 2
    assert all(0 <= each <= TOLERANCE for each in differences)


def test_a_program_that_is_not_its_agents_is_found_out(cases):
    """By how much worse its actions are, not by whether they are the same."""
    agent, _, inputs, _ = cases["nature"]
    policy, observations = make_policy(agent), inputs["observation"]

    def measure(change):
        run = jax.jit(policy.function)
        return measure_difference(agent, policy, lambda given: change(*map(np.asarray, run(*given))), observations)

    assert measure(lambda action, values: [action, values]) <= TOLERANCE
    assert measure(lambda action, values: [action, values + 2e-5]) > TOLERANCE
    assert not measure(lambda action, values: [action, values * np.nan]) <= TOLERANCE
    assert measure(lambda action, values: [(action + 1) % 3, values]) > TOLERANCE
    assert measure(lambda action, values: [action, values[:, :1]]) == np.inf


@pytest.fixture
def saved(cases, tmp_path, monkeypatch):
    """A folder with the run that the docs export."""
    monkeypatch.chdir(tmp_path)
    return cases["heads"].agent.save("runs/first")


def test_the_docs_export_a_run_that_the_hub_can_show(cases, saved, capsys):
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    found: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, found)
    agent = cases["heads"].agent
    np.testing.assert_array_equal(found["action"], agent.predict(found["observation"]))
    assert set(found["exported"].differences) == {"stablehlo", "onnx"}
    assert "An episode" in Path("exported/README.md").read_text()  # there are no evaluations

    RunDirectory(saved).append({"step": 100, "seed": 1, "eval/mean_reward": 9.5})
    (command,) = re.findall(r"^    qemrl (export .*)$", text, flags=re.MULTILINE)
    main([*command.split(), "--episodes", "2"])
    said = capsys.readouterr().out
    assert re.search(r"onnx +\d\.\de-\d\d", said)
    written = sorted(path.name for path in Path("exported").iterdir())
    assert written == ["README.md", "figure.png", "figure.svg", "policy.json", "policy.onnx"]
    described = json.loads(Path("exported/policy.json").read_text())
    assert described["actions"] == {"num_actions": 2, "start": 0}
    np.testing.assert_allclose(described["levels"], np.tile(qemrl.midpoints(8), 2), rtol=1e-6)
    np.testing.assert_allclose(described["probs"], np.full(16, 1 / 16))

    card = huggingface_hub.ModelCard.load("exported/README.md")
    data: Any = card.data
    assert (data.library_name, data.pipeline_tag) == ("qemrl", "reinforcement-learning")
    assert {"reinforcement-learning", "deep-reinforcement-learning", "CartPole-v1", "qem-dqn"} <= set(data.tags)
    (result,) = data.eval_results
    evaluation = qemrl.load(saved).evaluate(2)
    assert (result.dataset_name, result.metric_type) == ("CartPole-v1", "mean_reward")
    assert result.metric_value == f"{evaluation.mean:.2f} +/- {evaluation.returns.std():.2f}"
    assert "![Learning curve](figure.png)" in card.text
    assert "| `representation.num_heads` | 2 |" in card.text
    (block,) = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    os.chdir("exported")
    exec(block, {"observation": found["observation"]})


def test_nothing_is_written_where_something_is_wrong(cases, saved, capsys, monkeypatch):
    def fails(code, *arguments):
        with pytest.raises(SystemExit) as caught:
            main(["export", str(saved), "--out", "elsewhere", *arguments])
        assert caught.value.code == code
        assert not Path("elsewhere").exists()
        return capsys.readouterr().err

    assert "qem-dqn draws no levels that could be an input" in fails(2, "--levels", "input")
    with monkeypatch.context() as strict:
        strict.setattr(directory, "TOLERANCE", -1.0)
        assert "away from its agent" in fails(1)
    with monkeypatch.context() as without:
        without.setattr(importlib.util, "find_spec", lambda _: None)
        assert "pip install 'qemrl[onnx]'" in fails(2, "--format", "onnx")
    with pytest.raises(ValueError, match="formats are stablehlo and onnx; got none"):
        export_agent(cases["heads"].agent, "elsewhere", ())
