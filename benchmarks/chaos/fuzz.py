"""Calls with arguments that make no sense: estimators, agents, grids, options, environments.

What comes of a call is a result, or an error of the kinds that are documented. Public names are found by looking, so
that a new one is tried without a word here.
"""

import contextlib
import functools
import inspect
import io
import random
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import torch

import qemrl
import qemrl.torch
from benchmarks.chaos.hostile import TEXTS, draw_array, draw_hostile
from benchmarks.chaos.trials import Outcome, Trial, describe_error
from qemrl import estimators
from qemrl.agents.presets import PRESETS
from qemrl.cli.app import main
from qemrl.config.describe import list_settings
from qemrl.experiments.grid import read_grid
from qemrl.training.config import configure
from qemrl.training.train import NonFiniteTrainingError

CALLS_PER_TRIAL = 500
EXPECTED = (TypeError, ValueError)
"""What a call that makes no sense may raise."""

ENVS = ("CartPole-v1", "Pendulum-v1", "jax/catch", "jax/pendulum", "probe/1", "minatar/breakout", "nothing-v0")

Call = Callable[[], Any]


def try_calls(trial: Trial) -> Outcome:
    """Many calls of one kind."""
    chance, outcome = trial.chance, Outcome()
    kind = chance.choices(list(KINDS), [share for _, _, share in KINDS.values()])[0]
    draw, count, _ = KINDS[kind]
    trial.folder.mkdir(parents=True, exist_ok=True)
    for _ in range(count):
        name, call = draw(chance, trial)
        outcome.tried[f"calls, {kind}"] += 1
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                call()
        except EXPECTED as error:
            if isinstance(error, UnicodeError) or not str(error):
                outcome.fail(f"calls, {kind}", "traceback", f"{name}: {describe_error(error)}")
        except Exception as error:
            outcome.fail(f"calls, {kind}", "traceback", f"{name}: {describe_error(error)}")
    shutil.rmtree(trial.folder, ignore_errors=True)
    return outcome


def show(value: Any) -> str:
    """A value in a few words."""
    return f"{type(value).__name__} {repr(value)[:120]}" if not isinstance(value, int) else f"int {str(value)[:40]}"


def _draw_levels(chance: random.Random) -> Any:
    count = chance.choice((1, 2, 5, 32))
    levels = estimators.midpoints(count) if chance.random() < 0.6 else np.sort(np.random.default_rng(0).random(count))
    return np.broadcast_to(levels, (3, count)) if chance.random() < 0.2 else levels


def _draw_values(chance: random.Random) -> Any:
    values = np.random.default_rng(chance.randrange(2**32)).normal(
        size=chance.choice(((1,), (2,), (5,), (32,), (3, 32)))
    )
    return np.sort(values, axis=-1)


PLAUSIBLE: dict[str, Callable[[random.Random], Any]] = {
    "levels": _draw_levels,
    "values": _draw_values,
    "quantiles": _draw_values,
    "variances": lambda chance: np.abs(_draw_values(chance)) + 0.1,
    "probs": lambda chance: chance.choice((None, np.full(32, 1 / 32), np.full(5, 0.2))),
    "order": lambda chance: chance.randint(1, 6),
    "basis": lambda chance: chance.choice(("hermite", "legendre")),
    "num_quantiles": lambda chance: chance.choice((1, 5, 32)),
    "count": lambda chance: chance.choice((1, 5, 32)),
    "shape": lambda chance: chance.choice((5, (3, 32), (0, 4))),
    "source": lambda chance: chance.choice((np.random.default_rng(0), jax.random.key(0))),
    "rng": lambda chance: np.random.default_rng(chance.randrange(99)),
    "trials": lambda chance: chance.choice((2, 10)),
    "draw": lambda chance: chance.choice((estimators.uniform_levels, estimators.cumulative_levels)),
    "estimator": lambda chance: chance.choice(_known_estimators()),
    "distribution": lambda chance: chance.choice(list(estimators.DISTRIBUTIONS.values())),
    "noise": lambda chance: chance.choice((estimators.IndependentNoise(), estimators.SampleQuantileNoise(20))),
    "variance": lambda chance: chance.choice((estimators.TailVariance(1.5), estimators.ConstantVariance())),
    "alpha": lambda chance: chance.choice((0.1, 0.5, 1.0)),
    "weights": lambda chance: np.full(chance.choice((1, 5)), 0.2),
    "dtype": lambda chance: chance.choice((None, np.float32, "float64")),
}
"""What an argument of that name may well be."""


@functools.cache
def _known_estimators() -> tuple[Any, ...]:
    return tuple(preset.estimator for preset in estimators.ESTIMATORS.values())


@functools.cache
def _public_names() -> dict[str, Any]:
    names = {name: getattr(estimators, name) for name in estimators.__all__}
    names |= {f"torch.{name}": getattr(qemrl.torch, name) for name in qemrl.torch.__all__}
    protocols = ("Protocol", "EstimatedVariance", "Estimator", "Statistic", "Noise", "VarianceModel")
    return {name: each for name, each in names.items() if callable(each) and name not in protocols}


def _draw_arguments(target: Any, chance: random.Random) -> tuple[list[Any], str]:
    """Arguments by position, most of them of the right kind."""
    arguments, given = [], []
    hostile_share = chance.choice((0.0, 0.3, 0.6))
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY):
            continue
        if parameter.default is not parameter.empty and chance.random() < 0.5:
            break
        plausible = PLAUSIBLE.get(name, lambda chance: chance.choice((0.5, 1.5, 3, 5)))
        value = draw_hostile(chance) if chance.random() < hostile_share else plausible(chance)
        arguments.append(value)
        given.append(f"{name} = {show(value)}")
    return arguments, ", ".join(given)


def _draw_estimator_call(chance: random.Random, trial: Trial) -> tuple[str, Call]:
    """A public function, a class, or a method of an instance that is plausible."""
    del trial
    names = _public_names()
    name = chance.choice(list(names))
    target = names[name]
    if inspect.isclass(target) and chance.random() < 0.7:
        instance = _make_plausible(name, chance)
        methods = [each for each in dir(instance) if not each.startswith("_") and _is_own_method(instance, each)]
        if instance is not None and methods:
            method = chance.choice(methods)
            name, target = f"{name}.{method}", getattr(instance, method)
    arguments, said = _draw_arguments(target, chance)
    arguments = _convert(arguments, chance, "torch." in name)
    return f"{name}({said})", lambda: target(*arguments)


def _is_own_method(instance: Any, name: str) -> bool:
    with contextlib.suppress(Exception):
        found = inspect.getattr_static(type(instance), name, None)
        return inspect.isfunction(found) and (getattr(found, "__module__", None) or "").startswith("qemrl")
    return False


def _make_plausible(name: str, chance: random.Random) -> Any:
    target = _public_names()[name]
    for _ in range(5):
        with contextlib.suppress(Exception):
            quiet = random.Random(chance.randrange(2**32))
            parameters = inspect.signature(target).parameters
            needed = [key for key, each in parameters.items() if each.default is each.empty]
            return target(*(PLAUSIBLE.get(key, lambda chance: chance.choice((0.5, 2, 5)))(quiet) for key in needed))
    return None


def _convert(arguments: list[Any], chance: random.Random, to_torch: bool) -> list[Any]:
    """Arrays as they are, or now and then as JAX's or PyTorch's."""
    kind = "torch" if to_torch and chance.random() < 0.8 else chance.choices(("numpy", "torch", "jax"), (90, 8, 2))[0]
    convert = {"numpy": lambda array: array, "torch": _to_torch, "jax": jnp.asarray}[kind]

    def change(value: Any) -> Any:
        with contextlib.suppress(Exception):
            return convert(value) if isinstance(value, np.ndarray) else value
        return value

    return [change(value) for value in arguments]


def _to_torch(array: np.ndarray) -> Any:
    return torch.from_numpy(np.array(array))


def _draw_make_call(chance: random.Random, trial: Trial) -> tuple[str, Call]:
    """An agent is made, from arguments of which some make no sense."""
    del trial
    given: dict[str, Any] = {"preset": chance.choice(list(PRESETS)), "env": chance.choice(ENVS), "seed": 0}
    given["overrides"] = dict([_draw_override(chance)])
    for name in chance.sample(("preset", "env", "seed", "overrides", "env_kwargs", "evaluation_env"), 2):
        if chance.random() < 0.5:
            given[name] = draw_hostile(chance)
    said = ", ".join(f"{name} = {show(value)}" for name, value in given.items())
    return f"make({said})", lambda: qemrl.make(**given)


@functools.cache
def _setting_names(preset: str, env: str) -> tuple[str, ...]:
    config = configure(preset, env, 100)
    return tuple(setting.name for group in list_settings(config) for setting in group.settings)


def _draw_override(chance: random.Random) -> tuple[Any, Any]:
    preset, env = chance.choice((("qem-dqn", "CartPole-v1"), ("iqn", "minatar/breakout"), ("qem-dsac", "Pendulum-v1")))
    name = chance.choice((*_setting_names(preset, env), "replay", "optimizer", "network", "nothing"))
    return (name, draw_hostile(chance)) if chance.random() < 0.97 else (draw_hostile_key(chance), 1)


def draw_hostile_key(chance: random.Random) -> Any:
    """A key of a dictionary that is no name."""
    return chance.choice((None, 1, 2.5, (), "", ".", "a.", ".a", "a..b", b"x", True, "replay.", "\ud800"))


@functools.cache
def _agents() -> tuple[Any, ...]:
    small = {"network.widths": (8,)}
    return (
        qemrl.make("qem-dqn", env="CartPole-v1", overrides=small),
        qemrl.make("iqn", env="minatar/breakout"),
        qemrl.make("td3", env="Pendulum-v1", overrides={"network.policy_widths": (8,)}),
    )


def _draw_agent_call(chance: random.Random, trial: Trial) -> tuple[str, Call]:
    """A method of an agent, with what is no observation, or no number of steps."""
    agent = chance.choice(_agents())
    name = chance.choice(
        ("predict", "predict", "predict_distribution", "predict_distribution", "learn", "save", "load")
    )
    value = draw_array(chance) if name.startswith("predict") and chance.random() < 0.5 else draw_hostile(chance)
    if name == "learn" and isinstance(value, int | float | np.number | np.ndarray | str):
        value = chance.choice((-1, "x", None, [], 2.5, 1j, -(10**400), np.nan, True))
    if name in ("save", "load") and isinstance(value, str):
        value = str(trial.folder / "nothing" / "\0")
    target: Any = qemrl.load if name == "load" else getattr(agent, name)
    return f"{name}({show(value)})", lambda: target(value)


GRID = {
    "presets": '["qr-dqn", "iqn+x"]',
    "envs": '["jax/catch"]',
    "seeds": "2",
    "steps": "100",
    "overrides": "{ batch_size = 8 }",
}
TOML = (
    *(
        "1",
        "-1",
        "0",
        "2.5",
        "nan",
        "inf",
        "true",
        '""',
        '"x"',
        "[]",
        "[[]]",
        '[["qr-dqn"]]',
        '["qr-dqn", "qr-dqn"]',
        "{}",
    ),
    *("1000000000", "9" * 400, '"[red]x[/red]"', '["[red]x[/red]"]', "[1, 1]", "[-1]", "[1.5]", "{ a = 1 }", "[{}]"),
    *("[" * 5_000 + "]" * 5_000, "1979-05-27", '["iqn+"]', '["iqn+../x"]', '["nothing-v0"]', '["a:b"]', "1e5", "1e400"),
    *("{ iqn = 3 }", '{ "representation.nothing" = 1 }', "{ network = 3 }", "{ network.widths = [0] }", '"\\u0000"'),
)


def _draw_grid_call(chance: random.Random, trial: Trial) -> tuple[str, Call]:
    """The TOML file of a grid with some of its values changed, or cut anywhere."""
    changes = {chance.choice((*GRID, "nothing")): chance.choice(TOML) for _ in range(chance.randint(1, 2))}
    text = "".join(f"{name} = {value}\n" for name, value in {**GRID, **changes}.items())
    if chance.random() < 0.2:
        text = text[: chance.randrange(len(text))]
    content = text.encode()
    if chance.random() < 0.1:
        content = content[:20] + chance.randbytes(5) + content[20:]
    file = trial.folder / "grid.toml"

    def call() -> None:
        file.write_bytes(content)
        read_grid(file).runs()

    return f"grid {text[:500]}", call


def _draw_option_call(chance: random.Random, trial: Trial) -> tuple[str, Call]:
    """An option of the command line with a word that makes no sense; nothing is trained."""
    preset, env = chance.choice((("qem-dqn", "CartPole-v1"), ("iqn", "minatar/breakout"), ("qem-dsac", "Pendulum-v1")))
    name = chance.choice(
        (*_setting_names(preset, env), "env", "settings", "out", "env-kwargs.x", "config", "wandb", "")
    )
    words = ["train", preset, "--env", env, f"--{name.replace('_', '-')}", chance.choice(TEXTS), "--help"]
    if chance.random() < 0.2:
        words = [chance.choice(("resume", "evaluate", "show", "export", "report", "sweep", "tune", "compare", "fits"))]
        words += [str(trial.folder / "x"), *(chance.choice(TEXTS) for _ in range(chance.randint(0, 2)))]
        words += ["--out", str(trial.folder / "y")]

    def call() -> None:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                main(words)
        except SystemExit as end:
            if end.code not in (0, 1, 2, None):
                raise RuntimeError(f"ended with {end.code!r}") from end

    return f"qemrl {words}", call


class Faulty(gymnasium.Env):
    """An environment that does something wrong at one step."""

    def __init__(self, fault: str, at: int, value: Any) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.fault, self.at, self.value, self.steps = fault, at, value, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        del options
        super().reset(seed=seed)
        self.episode = 0
        if self.steps >= self.at and self.fault in ("reset", "reset raises"):
            if self.fault == "reset raises":
                raise OSError("out of order")
            return self.value
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        del action
        self.steps, self.episode = self.steps + 1, self.episode + 1
        step: list[Any] = [np.full(3, 0.5, np.float32), 1.0, self.episode >= 5, False, {}]
        if self.steps == self.at:
            places = {"observation": 0, "reward": 1, "terminated": 2, "truncated": 3, "info": 4}
            if self.fault in places:
                step[places[self.fault]] = self.value
            elif self.fault == "step":
                return self.value
            elif self.fault == "step raises":
                raise KeyError("out of order")
        return tuple(step)


FAULTS = ("observation", "reward", "terminated", "truncated", "info", "step", "step raises", "reset", "reset raises")


def _draw_env_call(chance: random.Random, trial: Trial) -> tuple[str, Call]:
    """Learning in an environment that does something wrong."""
    del trial
    fault, at, value = chance.choice(FAULTS), chance.randint(1, 40), draw_hostile(chance)
    num_envs = chance.choice((1, 1, 3))
    overrides = {"network.widths": (8,), "learning_starts": 20, "batch_size": 4, "num_envs": num_envs}

    def call() -> None:
        agent = qemrl.make("qr-dqn", env=lambda: Faulty(fault, at, value), overrides=overrides)
        try:
            agent.learn(48, progress=False)
        except (OSError, KeyError) as error:
            if "out of order" not in str(error):  # what the environment raises is its own
                raise
        except NonFiniteTrainingError:
            pass
        except RuntimeError as error:
            if not isinstance(error.__cause__, OSError | KeyError):
                raise

    return f"{num_envs} environments, {fault} {show(value)} at {at}", call


Draw = Callable[[random.Random, Trial], tuple[str, Call]]
KINDS: dict[str, tuple[Draw, int, float]] = {
    "estimators": (_draw_estimator_call, CALLS_PER_TRIAL, 0.62),
    "make": (_draw_make_call, 50, 0.08),
    "agents": (_draw_agent_call, 100, 0.08),
    "grids": (_draw_grid_call, 200, 0.1),
    "options": (_draw_option_call, 50, 0.08),
    "environments": (_draw_env_call, 4, 0.04),
}
"""What is called, how often in a trial, and in which share of them."""
