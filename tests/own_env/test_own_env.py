"""Environments of a user's own: as objects, functions, ids and vectors, in every call and command that takes one."""

import json
import sys
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from own_worlds import DictRobot, GridWorld, ImageMaze, OneStep

import qemrl
from qemrl.cli import main
from qemrl.envs.gym.catalog import MissingPackage, find_environment
from qemrl.export import export_agent
from qemrl.training.loops import ImportRefused
from qemrl.types import UnsupportedEnvironment

TINY = {
    "network.widths": (8,),
    "batch_size": 8,
    "learning_starts": 32,
    "representation.num_quantiles": 8,
    "target_every": 40,
    "evaluation_episodes": 2,
}
OPTIONS = "--network.widths 8 --batch-size 8 --learning-starts 32 --representation.num-quantiles 8 --target-every 40"
FORMS = {
    "instance": (lambda: GridWorld(size=4), {}),
    "made": (lambda: gymnasium.make("GridWorld-v0", size=4), {}),
    "class": (lambda: GridWorld, {"size": 4}),
    "function": (lambda: lambda: GridWorld(4), {}),
    "vector": (lambda: SyncVectorEnv([lambda: GridWorld(4)] * 2), {}),
    "id": (lambda: "GridWorld-v0", {"size": 4}),
    "module": (lambda: "own_worlds:GridWorld-v0", {"size": 4}),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_environment_is_learned_saved_and_loaded_in_every_form(form, tmp_path):
    env, kwargs = FORMS[form]
    agent = qemrl.make("qr-dqn", env(), env_kwargs=kwargs, overrides=TINY)
    assert agent.spec.observation_shape == (4,)
    assert agent.config.env.rpartition(":")[2] in ("GridWorld", "GridWorld-v0")
    agent.learn(120, progress=False)
    before = agent.evaluate(2)
    path = agent.save(tmp_path / "agent")
    if form in ("id", "module"):
        loaded = qemrl.load(path)
        assert agent.config.env_name.endswith("GridWorld-v0 size=4")
    else:
        with pytest.raises(ValueError, match=r"GridWorld.* was handed over from Python.*qemrl.load\(path, env=…\)"):
            qemrl.load(path)
        loaded = qemrl.load(path, env=env(), env_kwargs=kwargs)
    np.testing.assert_array_equal(loaded.evaluate(2).returns, before.returns)
    if form == "vector":
        with pytest.warns(UserWarning, match="new episode"):
            loaded.learn(40, progress=False)
    else:
        again = agent.learn(40, progress=False).q(np.eye(4, dtype=np.float32))
        np.testing.assert_array_equal(loaded.learn(40, progress=False).q(np.eye(4, dtype=np.float32)), again)


def test_an_environment_in_which_evaluations_are_played_is_never_the_one_that_learns():
    env = GridWorld(4)
    agent = qemrl.make("qr-dqn", env, overrides=TINY).learn(48, progress=False)
    place, random = env.place, env.np_random.bit_generator.state
    agent.evaluate(2)
    assert env.place == place
    assert env.np_random.bit_generator.state == random


def test_two_environments_side_by_side_are_the_one_that_is_given_and_a_copy_of_it():
    env = GridWorld(4)
    agent = qemrl.make("qr-dqn", env, num_envs=2, overrides=TINY)
    inside = agent._envs.vector.envs  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    assert inside[0] is env
    assert type(inside[1]) is GridWorld
    assert inside[1] is not env


WORLDS = {
    "image": (
        "qr-dqn",
        partial(ImageMaze, 16),
        {"representation.num_quantiles": 8, "network.widths": (8,), "target_every": 40},
    ),
    "dict": ("sac", DictRobot, {"network.policy_widths": (8,), "network.critic_widths": (8,), "random_steps": 10}),
}


@pytest.mark.parametrize("world", WORLDS)
def test_a_world_is_learned_in_a_run_directory_loaded_and_exported(world, tmp_path):
    preset, env, settings = WORLDS[world]
    small = settings | {"batch_size": 8, "learning_starts": 32, "log_every": 40, "checkpoint_every": 80}
    agent = qemrl.make(preset, env, overrides=small)
    agent.learn(80, out=tmp_path / "run", evaluate_every=40, evaluation_episodes=2, progress=False)
    best = qemrl.load(tmp_path / "run", env=env, checkpoint="best")
    assert best.steps in (40, 80)
    loaded = qemrl.load(tmp_path / "run", env=env)
    observation, _ = env().reset(seed=0)
    np.testing.assert_array_equal(loaded.predict(observation), agent.predict(observation))
    np.testing.assert_array_equal(
        loaded.learn(40, progress=False).q(observation), agent.learn(40, progress=False).q(observation)
    )
    written = export_agent(loaded, tmp_path / "exported", "stablehlo", episodes=1)
    assert written.differences["stablehlo"] < 1e-5
    assert "mean_reward" in (tmp_path / "exported" / "README.md").read_text()


def test_an_episode_that_ends_at_its_first_step_is_learned_from():
    agent = qemrl.make("qr-dqn", OneStep(), overrides=TINY | {"optimizer.learning_rate": 1e-2})
    agent.learn(600, progress=False)
    assert agent.evaluate(10).mean > 0.8


class Uncopyable(GridWorld):
    """Holds what cannot be copied, as simulators do."""

    def __deepcopy__(self, memo):
        raise TypeError("a window cannot be copied")


def test_what_cannot_be_copied_is_evaluated_in_an_environment_that_is_given_for_that():
    agent = qemrl.make("qr-dqn", Uncopyable(4), overrides=TINY)
    with pytest.raises(ValueError, match=r"Uncopyable.*cannot be copied; give a function.*evaluation_env"):
        agent.evaluate(1)
    other = qemrl.make("qr-dqn", Uncopyable(4), evaluation_env=lambda: GridWorld(4), overrides=TINY)
    assert len(other.evaluate(2).returns) == 2


def test_a_vector_environment_of_another_kind_needs_an_environment_to_evaluate_in():
    class Native(VectorEnv):
        """Resets itself, and is made of nothing."""

        num_envs = 3
        metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
        single_observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
        single_action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros((3, 2), np.float32), {"seed": seed, "options": options}

        def step(self, actions):
            return np.zeros((3, 2), np.float32), actions.astype(float), np.zeros(3, bool), np.zeros(3, bool), {}

    agent = qemrl.make("qr-dqn", Native(), overrides=TINY | {"target_every": 42})
    assert agent.config.num_envs == 3
    agent.learn(60, progress=False)
    with pytest.raises(ValueError, match="Native of Native cannot be made again to evaluate in; give an environment"):
        agent.evaluate(1)
    with pytest.raises(ValueError, match="3 environments; got num_envs=2"):
        qemrl.make("qr-dqn", Native(), num_envs=2, overrides=TINY)


@pytest.mark.parametrize(
    ("env", "kwargs", "message"),
    [
        ("", {}, "the name of the environment is empty"),
        (dict, {}, "dict must make a gymnasium.Env; it made {}"),
        (GridWorld(), {"size": 3}, r"made already, so env_kwargs=\{'size': 3\} come too late"),
        ("GridWorld-v0", {"siez": 3}, "unexpected keyword argument 'siez'; it takes size, goal_reward, wind"),
        ("GridWorld-v0", {"wind": np.sin}, "env_kwargs.wind is .*cannot store.*env=lambda"),
        ("GridWorld-v0", {"wind": float("nan")}, "env_kwargs.wind is nan, which a run cannot store"),
        ("jax/catch", {"size": 3}, "jax/catch takes no keyword arguments"),
        ("PongNoFrameskip-v4", {"frameskip": 3}, "takes mode and difficulty; frameskip is a matter of the protocol"),
    ],
)
def test_what_is_no_environment_is_refused_with_what_to_do(env, kwargs, message):
    with pytest.raises((ValueError, UnsupportedEnvironment), match=message):
        qemrl.make("qr-dqn", env, env_kwargs=kwargs)


@pytest.fixture(name="own_folder")
def make_own_folder(tmp_path, monkeypatch):
    """A working folder with a module that registers an environment, which nobody has imported."""
    source = Path(__file__).with_name("own_worlds.py").read_text().replace("-v0", "-v7")
    (tmp_path / "my_worlds.py").write_text(source)
    (tmp_path / "optax.py").write_text("raise SystemExit('the working folder was searched for a package')")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget()


def forget():
    sys.modules.pop("my_worlds", None)
    for name in [name for name in gymnasium.registry if name.endswith("-v7")]:
        del gymnasium.registry[name]


def run(command):
    main(command.split())


def test_the_command_line_takes_a_module_of_the_working_folder_and_keyword_arguments(own_folder, capsys):
    run(
        "train qr-dqn --env my_worlds:GridWorld-v7 --env-kwargs.size 4 --env-kwargs.wind strong "
        f"--env-kwargs.goal-reward 2 {OPTIONS} --steps 80 --log-every 40 --evaluate-every 80 --evaluation-episodes 2 "
        "--checkpoint-every 80 --out run"
    )
    config = json.loads((own_folder / "run" / "config.json").read_text())["config"]
    assert config["env_kwargs"] == [["goal_reward", 2], ["size", 4], ["wind", "strong"]]
    forget()  # as in another process
    for command in ("resume run --steps 120", "evaluate run --episodes 2", "show run"):
        with pytest.raises(SystemExit):
            run(command)
        said = capsys.readouterr().err
        assert "would import the module 'my_worlds', which can do anything" in said
        assert "--allow-imports" in said
        assert "my_worlds" not in sys.modules
    with pytest.raises(ImportRefused, match="my_worlds"):
        qemrl.load("run")
    run("resume run --steps 120 --allow-imports")
    run("export run --out exported --episodes 1 --checkpoint best --allow-imports")
    assert "GridWorld-v7" in (own_folder / "exported" / "README.md").read_text()
    run("evaluate run --episodes 2 --json --allow-imports")
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["env"] == "my_worlds:GridWorld-v7 goal_reward=2 size=4 wind=strong"
    assert result["step"] == 120


def test_settings_are_tuned_on_an_environment_of_the_working_folder(own_folder):
    run(
        f"tune qr-dqn --env my_worlds:GridWorld-v7 --env-kwargs.size 4 {OPTIONS} --steps 80 --trials 1 --num-seeds 1 "
        "--log-every 40 --evaluate-every 40 --evaluation-episodes 2 --range.optimizer.learning-rate 1e-4:1e-2:log "
        "--cores 1 --out tuned"
    )
    assert 'envs = ["my_worlds:GridWorld-v7"]' in (own_folder / "tuned" / "best.toml").read_text()


@pytest.mark.usefixtures("own_folder")
def test_a_module_of_the_working_folder_hides_no_other_and_a_missing_one_is_named():
    find_environment("my_worlds:GridWorld-v7")
    with pytest.raises(MissingPackage, match="the module 'their_worlds', which cannot be imported"):
        find_environment("their_worlds:GridWorld-v7")


def test_a_run_whose_environment_was_handed_over_is_not_resumed_by_a_command(tmp_path, capsys):
    path = qemrl.make("qr-dqn", GridWorld(4), overrides=TINY).learn(40, progress=False).save(tmp_path / "agent")
    for command in (f"resume {path} --steps 80", f"evaluate {path}", f"show {path}"):
        with pytest.raises(SystemExit) as exit_:
            run(command)
        assert exit_.value.code == 2
        assert "GridWorld, was handed over from Python" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("true", True),
        ("False", False),
        ("none", None),
        ("4x4", "4x4"),
        ('"3"', "3"),
        ("[1,2]", (1, 2)),
        ("-1", -1),
    ],
)
def test_keyword_arguments_are_what_they_look_like(text, value):
    from qemrl.cli.runs import NOT_SETTINGS, read_options
    from qemrl.training.config import configure

    options = read_options([f"--env-kwargs.a-name={text}"], NOT_SETTINGS)
    assert configure("qr-dqn", "CartPole-v1", 100, overrides=options).env_kwargs == (("a_name", value),)
