"""Grids: what a small file says about many runs."""

from dataclasses import replace

import pytest

from qemrl.agents.optimizer import AdamConfig
from qemrl.distributional.implicit import ImplicitQuantiles
from qemrl.estimators import QEM, ConstantVariance, TailVariance
from qemrl.experiments.builtin_grids import builtin_grids, summary
from qemrl.experiments.grid import Grid, Run, read_grid
from qemrl.training.config import configure
from qemrl.training.loops import ImportRefused

PLAIN = Grid(["qr-dqn", "qem-dqn"], ["jax/catch", "minatar/breakout"], 2, 1000)


def grid(presets, overrides, envs=("jax/catch",)):
    return Grid(list(presets), list(envs), 1, 1000, overrides)


def config(presets, overrides, arm, env="jax/catch"):
    return grid(presets, overrides, [env]).config(arm, env, 0)


def test_every_algorithm_meets_every_environment_with_every_seed():
    runs = [(run.arm, run.config.env, run.config.seed) for run in PLAIN.runs()]
    assert sorted(runs) == sorted((arm, env, seed) for arm in PLAIN.presets for env in PLAIN.envs for seed in (0, 1))
    assert [seed for *_, seed in runs] == [0] * 4 + [1] * 4


def test_a_run_without_overrides_is_that_of_the_preset():
    assert PLAIN.config("qem-dqn", "jax/catch", 1) == configure("qem-dqn", "jax/catch", 1000, seed=1)


def test_seeds_are_a_number_or_a_list():
    assert Grid(["dqn"], ["jax/catch"], 3, 10).seed_list == (0, 1, 2)
    assert Grid(["dqn"], ["jax/catch"], [7, 3], 10).seed_list == (7, 3)


def test_the_id_depends_on_everything_that_matters_and_on_nothing_else():
    run = PLAIN.runs()[0]
    assert len(run.id) == 12
    assert replace(run, arm="another").id == run.id
    agent = replace(run.config.agent, optimizer=AdamConfig(0.5))
    others = [replace(run.config, seed=5), replace(run.config, steps=999), replace(run.config, agent=agent)]
    assert len({run.id, *(replace(run, config=other).id for other in others)}) == 4


def test_runs_that_differ_in_the_seed_share_an_agent_and_have_the_ids_of_their_own_settings():
    runs = Grid(["iqn"], ["jax/catch"], [3, 0, 7], 1000).runs()
    assert runs[0].config.agent is runs[-1].config.agent
    assert [run.id for run in runs] == [
        Run(run.arm, PLAIN.config("iqn", "jax/catch", run.config.seed)).id for run in runs
    ]


def test_a_module_that_a_file_names_is_imported_only_if_that_is_allowed(tmp_path):
    file = tmp_path / "grid.toml"
    # The id of an Atari game: its module would be imported already when the game's protocol is looked for.
    file.write_text('presets = ["dqn"]\nenvs = ["strange_worlds:PongNoFrameskip-v4"]\nseeds = 1\nsteps = 10\n')
    with pytest.raises(ImportRefused, match=r"grid.toml: the environment, strange_worlds:Pong.*--allow-imports"):
        read_grid(file)
    assert read_grid(file, allow_imports=True).envs == ["strange_worlds:PongNoFrameskip-v4"]


def test_an_id_stays_what_it_was():
    # Sweeps of earlier versions must be found again: a change of this number makes all their runs begin anew.
    assert Grid(["qr-dqn"], ["minatar/breakout"], 1, 1000).runs()[0].id == "dff8e1cc3237"


def test_folders_are_named_after_their_runs():
    run = Grid(["iqn+stratified"], ["minatar/breakout"], [4], 10).runs()[0]
    assert run.name == f"iqn+stratified_minatar-breakout_seed-4_{run.id}"
    assert Grid(["dqn"], ["a:B/c-v0"], 1, 10).runs()[0].name.startswith("dqn_a-B-c-v0_seed-0_")


def test_overrides_go_to_the_run_and_to_the_agent_and_dashes_will_do():
    found = config(["dqn"], {"log-every": 500, "evaluate_every": 500, "optimizer": {"learning-rate": 1}}, "dqn")
    assert (found.log_every, found.evaluate_every, found.agent.optimizer.learning_rate) == (500, 500, 1.0)


def test_what_is_more_special_comes_later():
    overrides = {
        "batch_size": 10,
        "discount": 0.5,
        "update_every": 2,
        "iqn": {"batch_size": 20, "discount": 0.6},
        "iqn+b": {"batch_size": 30},
        "jax/catch": {"update_every": 1},
    }
    presets, envs = ["iqn", "iqn+b", "dqn"], ["jax/catch", "jax/cartpole"]
    made = Grid(presets, envs, 1, 1000, overrides)
    found = {
        (arm, env): (agent.batch_size, agent.discount, agent.update_every)
        for arm in presets
        for env in envs
        for agent in [made.config(arm, env, 0).agent]
    }
    assert found == {
        ("iqn", "jax/catch"): (20, 0.6, 1),
        ("iqn", "jax/cartpole"): (20, 0.6, 2),
        ("iqn+b", "jax/catch"): (30, 0.6, 1),
        ("iqn+b", "jax/cartpole"): (30, 0.6, 2),
        ("dqn", "jax/catch"): (10, 0.5, 1),
        ("dqn", "jax/cartpole"): (10, 0.5, 2),
    }


def test_parts_are_chosen_by_name_and_then_set():
    overrides = {"qr-dqn+a": {"estimator.order": 3}, "estimator": "qem"}
    assert config(["qr-dqn", "qr-dqn+a"], overrides, "qr-dqn+a").agent.estimator == QEM(3, ConstantVariance())
    assert config(["qem-dqn"], {"estimator.variance.value": 7}, "qem-dqn").agent.estimator == QEM(4, TailVariance(7.0))


def test_several_environments_side_by_side_make_everything_fit():
    found = config(["dqn"], {"num_envs": 8}, "dqn", "minatar/breakout")
    assert found == configure("dqn", "minatar/breakout", 1000, num_envs=8)


def test_settings_that_fit_only_together_may_be_set_together():
    # Each alone would leave log_every at a number that is no multiple of the other.
    found = config(["dqn"], {"log_every": 300, "evaluate_every": 600, "checkpoint_every": 900}, "dqn")
    assert (found.log_every, found.evaluate_every, found.checkpoint_every) == (300, 600, 900)


def test_an_atari_protocol_is_chosen_by_name():
    found = config(["dqn"], {"protocol": "machado"}, "dqn", "ALE/Pong-v5")
    assert found.protocol is not None
    assert found.protocol.name == "machado"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"batch_sise": 3}, "dqn on jax/catch: there is no setting 'batch_sise' here; did you mean 'batch_size'"),
        ({"optimizer": {"rate": 3}}, "no setting 'optimizer.rate' here: optimizer is AdamConfig"),
        ({"batch_size": "many"}, "batch_size: expects int, got 'many'"),
        ({"batch_size": 0}, "batch_size"),
        ({"estimator": "qam"}, "there is no estimator 'qam'; did you mean 'qem'"),
        ({"replay": 3}, "replay is not one setting but several: replay.capacity, .*; got 3"),
        ({"seed": 3}, "seed is the grid's own"),
        ({"num_envs": 0}, "num_envs must be at least 1, got 0"),
        ({"num_envs": True}, "num_envs: expects int, got True"),
        ({"protocol": "paper"}, "protocol is for Atari games, and jax/catch is none"),
        ({"iqn+x": {"batch_size": 3}}, "no run is called 'iqn+x'"),
        ({"discount.x": 3}, "no setting 'discount.x' here; did you mean 'discount'"),
    ],
)
def test_overrides_that_make_no_sense_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        grid(["dqn"], overrides).runs()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"presets": []}, "presets must be a list of at least one name"),
        ({"presets": "dqn"}, "presets must be a list"),
        ({"presets": ["dqn", "dqn"]}, "'dqn' is there twice"),
        ({"presets": ["dqn+"]}, "neither a preset nor PRESET"),
        ({"envs": [""]}, "envs must be a list of at least one name"),
        ({"seeds": 0}, "seeds must be a number of seeds"),
        ({"seeds": -1}, "seeds must be a number of seeds"),
        ({"seeds": [1, 1]}, "seeds: 1 is there twice"),
        ({"seeds": [0, -1]}, r"seeds must lie in \[0, 2³²\), got -1"),
        ({"seeds": [2**32]}, r"seeds must lie in \[0, 2³²\), got 4294967296"),
        ({"seeds": 10**9}, "seeds: 1,000,000,000 of them, 2 environments and 2 presets are more than 100,000 runs"),
        ({"presets": ["[red]"]}, r"'\[red\]' is neither a preset nor PRESET"),
        ({"envs": ["a\x1b[31m"]}, r"envs: 'a\\x1b\[31m' has characters that cannot be printed"),
        ({"steps": 10**13}, "steps must be at most 2,000,000,000, got 10000000000000"),
        ({"steps": 0}, "steps must be at least 1"),
    ],
)
def test_grids_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Grid(**(PLAIN.as_json() | changes))


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'qr-dqn'"):
        grid(["qr-dqm"], {}).runs()


def test_variants_without_a_difference_are_refused():
    with pytest.raises(ValueError, match=r"dqn and dqn\+a are the same on jax/catch: give dqn\+a settings of its own"):
        grid(["dqn", "dqn+a"], {}).runs()


def test_a_file_is_read_and_its_mistakes_are_named(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text(
        'presets = ["iqn"]\nenvs = ["jax/catch"]\nseeds = [3]\nsteps = 1e3\n'
        "[overrides.iqn]\nrepresentation.share_levels = true\n"
    )
    (run,) = read_grid(file).runs()
    plain = configure("iqn", "jax/catch", 1000, seed=3)
    representation = ImplicitQuantiles(32, 32, 32, share_levels=True)
    assert run.config == replace(plain, agent=replace(plain.agent, representation=representation))
    for text, message in [
        ("presets = [", "is not TOML"),
        ("preset = 3", "a grid has no key 'preset'; did you mean 'presets'"),
        ('presets = ["dqn"]', "missing: envs, seeds, steps"),
        ('presets = ["dqn"]\nenvs = []\nseeds = 1\nsteps = 1', "envs must be a list"),
        ('presets = [["dqn"]]', r"presets must be a list of names, got \[\['dqn'\]\]"),
        ("steps = inf", "steps must be a whole number, got inf"),
        ("envs = [3]", "envs must be a list of names, got"),
        ("seeds = true", "seeds must be a number of seeds or a list of them, got True"),
        ("steps = 1.5", "steps must be a whole number, got 1.5"),
        ("overrides = 3", "overrides must be a table of settings, got 3"),
    ]:
        key = text.partition(" ")[0]
        whole = {"presets": '["dqn"]', "envs": '["jax/catch"]', "seeds": "1", "steps": "1"}
        further = [f"{name} = {value}" for name, value in whole.items() if name != key] if "must" in message else []
        file.write_text("\n".join([text, *further] if "\n" not in text else [text]))
        with pytest.raises(ValueError, match=message):
            read_grid(file)
    with pytest.raises(ValueError, match="no built-in grid of that name; did you mean 'minatar'"):
        read_grid("minitar")


@pytest.mark.parametrize("name", builtin_grids())
def test_ready_made_grids_can_be_run(name):
    made = read_grid(name)
    runs = made.runs()
    assert len(runs) == len(made.presets) * len(made.envs) * len(made.seed_list)
    assert len(summary(builtin_grids()[name])) > 20


def test_a_grid_survives_json():
    made = grid(["iqn"], {"iqn": {"representation": {"share_levels": True}}})
    assert Grid(**made.as_json()).runs() == made.runs()
