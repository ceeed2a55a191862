"""Tuning: settings that score well, searched by Optuna; needs the extra `tune`.

    DIR/tune.json                    what is tuned: the configuration, the ranges and the seeds
    DIR/study.db                     Optuna's study, in SQLite; written by the process that drives the tuning only
    DIR/trials/NNNN/seed_S/          a run directory for each seed of a trial; checkpoints are kept of the best trial
    DIR/lock                         held by the process that drives the tuning
    DIR/best.toml, trials.csv        the best trial as a grid, and all trials
    DIR/history.png, importance.png  Optuna's history and importance, also as SVG

A trial is the same settings with several seeds. Its value is the mean over seeds of the evaluations in the second half
of the run; what is reported on the way, and what the median pruner judges, is the mean over seeds of each evaluation.

The settings of a trial depend on the seed of the tuning, the trial's number and the trials before it, and on nothing
else. So a tuning that was killed goes on as if nothing had happened: trials that were running resume from the last
checkpoints of their runs. With one trial at a time, all trials repeat.
"""

import contextlib
import csv
import json
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import URL

from qemrl.config.serialize import to_json
from qemrl.experiments.compare import INTERVALS, evaluate_often
from qemrl.experiments.engines import Engine, Needs
from qemrl.experiments.grid import Grid
from qemrl.experiments.ranges import Bounds, Range
from qemrl.experiments.runs import read_run
from qemrl.experiments.sweep import Driver, RunStatus, State, read_first_status
from qemrl.plotting import style
from qemrl.plotting.tuning import TrialPoint, draw_history, draw_importance
from qemrl.training.config import RunConfig, configure, read_config
from qemrl.training.files import hold_lock, write_atomic
from qemrl.training.run_directory import RunExistsError, find_differences
from qemrl.training.train import NonFiniteTrainingError

STUDY = "qemrl"
"""The name of the study in study.db."""

RANDOM_TRIALS = 10
"""How many trials end before TPE chooses settings; until then they are drawn at random."""

UNPRUNED_TRIALS = 5
"""How many trials are finished before one is pruned."""

UNPRUNED_SHARE = 1 / 3
"""The share of a run before which it is not pruned."""

BEST_SHARE = 0.25
"""The share of the finished trials that importance is about: what sets them apart from the others."""

TrialStateName = Literal["running", "failed", "waiting", "finished", "pruned"]


@dataclass(frozen=True)
class Tuning:
    """What is tuned.

    Raises:
        ValueError: A setting or a bound of a range makes no sense; the message says which, and what would.
    """

    preset: str
    env: str
    steps: int
    num_seeds: int
    """Seeds of each trial, counted from zero."""

    overrides: Mapping[str, Any]
    """Settings of all trials, by dotted name."""

    ranges: Mapping[str, Range]
    """What is searched, by dotted name."""

    seed: int = 0
    """The seed of all draws of settings."""

    def __post_init__(self) -> None:
        if not self.ranges:
            raise ValueError("there is no range to search; give one: --range.optimizer.learning-rate 1e-5:2e-3:log")
        if self.seed < 0:
            raise ValueError(f"--seed must not be negative, got {self.seed}")
        for name in self.ranges:
            if name in self.overrides:
                raise ValueError(f"{name} has a range and a value, {self.overrides[name]!r}; give one of them")
        for name, value in self.overrides.items():
            if name.startswith("env_kwargs.") and value is None:
                raise ValueError(f"{name} is none, which best.toml could not hold; leave it out")
        self.grid(self.preset, {}).runs()
        first = {name: each.ends[0] for name, each in self.ranges.items()}
        for name, each in self.ranges.items():
            for end in each.ends:
                try:
                    self.grid(self.preset, first | {name: end}).runs()
                except ValueError as error:
                    raise ValueError(f"range.{name}: {end} is no value for it: {error}") from error

    @cached_property
    def config(self) -> RunConfig:
        """The run before anything is drawn."""
        return configure(self.preset, self.env, self.steps, overrides=self.settings)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings of all trials: those that are given, and intervals by which short runs are evaluated often too."""
        plain = configure(self.preset, self.env, self.steps, overrides=self.overrides)
        often = evaluate_often(plain)
        if often == plain or any(name in self.overrides for name in INTERVALS):
            return dict(self.overrides)
        return {**self.overrides, **{name: getattr(often, name) for name in INTERVALS}}

    def grid(self, arm: str, params: Mapping[str, Any]) -> Grid:
        """The runs of a trial."""
        return Grid((arm,), (self.env,), self.num_seeds, self.steps, {**self.settings, **params})

    def as_json(self) -> dict[str, Any]:
        """What must be the same for a tuning to go on, as plain data."""
        ranges = {name: str(each) for name, each in self.ranges.items()}
        return {"config": to_json(self.config), "num_seeds": self.num_seeds, "ranges": ranges, "seed": self.seed}


@dataclass(frozen=True)
class TrialStatus:
    """How far a trial is."""

    number: int
    state: TrialStateName
    params: Mapping[str, Any]
    done: float
    """The share of its steps that is done."""

    value: float | None
    """Its value if it is finished, else the latest evaluation that all its seeds have."""

    by_seed: Sequence[float] = ()
    """The values of its seeds, if it is finished."""

    cause: str | None = None
    """Why it failed, or why it was pruned if not for its evaluations."""


@dataclass
class _OpenTrial:
    """A trial that is not finished."""

    number: int
    params: dict[str, Any]
    paths: list[Path]
    needs: Mapping[Path, Needs]
    steps: int
    """How many steps each of its runs has."""

    means: dict[int, float] = field(default_factory=dict)
    """What was reported: the mean over seeds of each evaluation, by step."""


class Tuner:
    """The trials of a tuning in a folder.

    Raises:
        RunExistsError: The folder holds another tuning; the message says what differs.
    """

    def __init__(self, tuning: Tuning, folder: Path, trials: int) -> None:
        if trials < 1:
            raise ValueError(f"--trials must be at least 1, got {trials}")
        self.tuning, self.folder, self.trials = tuning, folder, trials
        self._check_folder()
        self._space = {name: _make_distribution(each) for name, each in tuning.ranges.items()}
        self._unpruned_steps = int(UNPRUNED_SHARE * tuning.config.whole_steps)
        self._open: dict[int, _OpenTrial] = {}
        self._runs: dict[Path, RunStatus] = {}
        self._evaluations: dict[Path, tuple[tuple[int, bool], dict[int, float]]] = {}
        """Evaluations by step, with the size of the file that they were read from."""

    def drive(
        self,
        engine: Engine,
        needs: Callable[[Sequence[RunStatus]], Mapping[Path, Needs]],
        workers: int,
        watch: Callable[[Sequence[TrialStatus]], None],
        should_stop: Callable[[], bool],
    ) -> list[TrialStatus]:
        """Bring all trials to their end, and return their states then.

        Args:
            engine: What executes their runs.
            needs: What runs take.
            workers: How many trials run at a time. One with a run that failed keeps its place, so that what makes all
                runs fail stops the tuning.
            watch: Called with the states of all trials, about once a second.
            should_stop: Whether to stop; the runs then save their state first.

        Raises:
            RunLockedError: Another process drives a tuning in this folder.
        """
        with self._lock():
            driver = Driver(engine, self._runs)
            trials = self._list_trials()
            numbers = [trial.number for trial in trials if not trial.state.is_finished()]
            numbers += range(len(trials), self.trials)
            while not should_stop():
                taken = bool(numbers) and len(self._open) < workers
                if taken:
                    self._take_up(numbers.pop(0), needs)
                waiting = self._start_runs(driver)
                if not (taken or waiting or driver.going):
                    break
                if driver.poll() or taken:
                    self._judge_all(driver)
                    watch(self.statuses)
            driver.stop()
            self._remove_checkpoints(driver.going)
            watch(self.statuses)
        return self.statuses

    @property
    def statuses(self) -> list[TrialStatus]:
        """The states of all trials, in their order."""
        return [self._describe(trial) for trial in self._list_trials()]

    @property
    def best(self) -> TrialStatus | None:
        """The finished trial with the largest value, the first of equals; None before one is finished."""
        ranked = rank(self.statuses)
        return ranked[0] if ranked else None

    def importance(self) -> dict[str, float]:
        """How much each setting matters for being among the best, by PED-ANOVA; empty if all trials are alike."""
        if len({trial.value for trial in self._list_trials() if trial.state is TrialState.COMPLETE}) < 2:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
        return optuna.importance.get_param_importances(self._study, evaluator=evaluator)

    def _start_runs(self, driver: Driver) -> bool:
        """Start the runs that there is room for; returns whether some are left."""
        left = False
        for trial in self._open.values():
            for path in trial.paths:
                if self._runs[path].state is State.WAITING:
                    if driver.engine.has_room(trial.needs[path]):
                        driver.start(path, trial.needs[path])
                    else:
                        left = True
        return left

    def _draw(self, trials: Sequence[FrozenTrial]) -> None:
        """Draw the settings of the trial after these, and store them at once."""
        seed = np.random.SeedSequence([self.tuning.seed, len(trials)]).generate_state(1)
        sampler = optuna.samplers.TPESampler(seed=int(seed[0]), n_startup_trials=RANDOM_TRIALS)
        # In a copy of the study: what Optuna's `ask` stores piece by piece could be cut short in the real one.
        copy = _open_study(None, sampler)
        copy.add_trials(trials)
        params = copy.ask(self._space).params
        self._study.add_trial(self._freeze(params, {}))

    def _take_up(self, number: int, needs: Callable[[Sequence[RunStatus]], Mapping[Path, Needs]]) -> None:
        """Open a trial, which is drawn if it is new; settings that do not go together end it."""
        if number == len(self._list_trials()):
            self._draw(self._list_trials())
        params = self._list_trials()[number].params
        try:
            runs = self.tuning.grid(f"{self.tuning.preset}+{number:04d}", params).runs()
        except ValueError as error:
            self._end(number, None, str(error))
            return
        statuses = [read_first_status(run, self._folder_of(number) / f"seed_{run.config.seed}") for run in runs]
        paths = [status.path for status in statuses]
        self._runs.update(zip(paths, statuses, strict=True))
        self._open[number] = _OpenTrial(number, params, paths, needs(statuses), runs[0].config.whole_steps)

    def _judge_all(self, driver: Driver) -> None:
        """Report what is new, and close the trials that have come to their end."""
        for trial in [trial for trial in self._open.values() if self._judge(trial)]:
            del self._open[trial.number]
            for path in driver.going.intersection(trial.paths):
                driver.engine.interrupt(path)
            self._remove_checkpoints(driver.going)

    def _judge(self, trial: _OpenTrial) -> bool:
        """Report the evaluations that all seeds have, in their order; returns whether the trial has ended.

        What is decided depends on the evaluations, not on when they are read: one that is pruned may have got further.
        """
        found = [self._collect_evaluations(path) for path in trial.paths]
        common = sorted(set.intersection(*map(set, found)))
        for step in common:
            if step in trial.means:
                continue
            trial.means[step] = statistics.fmean(evaluations[step] for evaluations in found)
            self._storage.set_trial_intermediate_value(self._id_of(trial.number), step, trial.means[step])
            if step < trial.steps and self._is_pruned(trial):
                self._end(trial.number)
                return True
        statuses = [self._runs[path] for path in trial.paths]
        for status, evaluations in zip(statuses, found, strict=True):
            # Before it ends, the other seeds catch up with the one that diverged.
            if _has_diverged(status) and set(evaluations) <= set(common):
                self._end(trial.number, cause=status.cause)
                return True
        if not all(status.state is State.FINISHED for status in statuses):
            return False
        late = [[value for step, value in each.items() if 2 * step > trial.steps] for each in found]
        if all(late):
            self._end(trial.number, [statistics.fmean(values) for values in late])
        else:
            self._end(trial.number, cause="its evaluations in the second half are not finite")
        return True

    def _is_pruned(self, trial: _OpenTrial) -> bool:
        """Whether the best evaluation so far is below the median of the finished trials at the latest step."""
        pruner = optuna.pruners.MedianPruner(UNPRUNED_TRIALS, self._unpruned_steps)
        return bool(pruner.prune(self._study, self._freeze(trial.params, trial.means)))

    def _end(self, number: int, by_seed: Sequence[float] | None = None, cause: str | None = None) -> None:
        """Store the end of a trial: with the values of its seeds if it is finished, else as pruned."""
        for name, value in (("by_seed", by_seed), ("cause", cause)):
            if value is not None:
                self._storage.set_trial_user_attr(self._id_of(number), name, value)
        if by_seed is None:
            self._study.tell(number, state=TrialState.PRUNED)
        else:
            self._study.tell(number, statistics.fmean(by_seed))

    def _collect_evaluations(self, path: Path) -> dict[int, float]:
        """The mean return of each evaluation of a run so far, by step; a run that cannot be read has failed."""
        file, status = path / "metrics.jsonl", self._runs[path]
        seen = file.stat().st_size if file.exists() else 0, status.state is State.FINISHED
        if path not in self._evaluations or self._evaluations[path][0] != seen:
            try:
                self._evaluations[path] = seen, _read_evaluations(path) if any(seen) else {}
            except Exception as error:  # nobody can list what a damaged file leads to
                self._runs[path] = replace(status, state=State.FAILED, cause=f"it cannot be read: {error}")
                return {}
        return self._evaluations[path][1]

    def _remove_checkpoints(self, going: set[Path]) -> None:
        """Keep the checkpoints of the best trial, and of those that are not finished: replays take much room."""
        best = self.best
        for trial in self._list_trials():
            if trial.state.is_finished() and (best is None or trial.number != best.number):
                for path in self._folder_of(trial.number).glob("seed_*"):
                    if path not in going:
                        shutil.rmtree(path / "checkpoints", ignore_errors=True)

    def _describe(self, trial: FrozenTrial) -> TrialStatus:
        params, steps = trial.params, self.tuning.config.whole_steps
        if trial.state.is_finished():
            finished = trial.state is TrialState.COMPLETE
            done = 1.0 if finished else (trial.last_step or 0) / steps
            by_seed, cause = (trial.user_attrs.get(name) for name in ("by_seed", "cause"))
            state = "finished" if finished else "pruned"
            return TrialStatus(trial.number, state, params, done, trial.value, by_seed or (), cause)
        last = trial.last_step
        value = None if last is None else trial.intermediate_values[last]
        if trial.number not in self._open:
            return TrialStatus(trial.number, "waiting", params, (last or 0) / steps, value)
        runs = [self._runs[path] for path in self._open[trial.number].paths]
        done = sum(run.step for run in runs) / sum(run.run.config.whole_steps for run in runs)
        failed = [run for run in runs if run.state is State.FAILED]
        cause = f"{failed[0].path}: {failed[0].cause}" if failed else None
        return TrialStatus(trial.number, "failed" if failed else "running", params, done, value, cause=cause)

    def _list_trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _folder_of(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    def _id_of(self, number: int) -> int:
        study = self._storage.get_study_id_from_name(STUDY)
        return self._storage.get_trial_id_from_study_id_trial_number(study, number)

    def _freeze(self, params: dict[str, Any], means: Mapping[int, float]) -> FrozenTrial:
        """A trial that is not finished, as Optuna has it."""
        return optuna.trial.create_trial(
            state=TrialState.RUNNING, params=params, distributions=self._space, intermediate_values=dict(means)
        )

    @cached_property
    def _storage(self) -> optuna.storages.RDBStorage:
        url = URL.create("sqlite", database=str(self.folder / "study.db"))
        return optuna.storages.RDBStorage(url.render_as_string(hide_password=False))

    @cached_property
    def _study(self) -> optuna.Study:
        return _open_study(self._storage)

    def _check_folder(self) -> None:
        file = self.folder / "tune.json"
        if not file.exists():
            return
        asked = self.tuning.as_json()
        try:
            there = json.loads(file.read_bytes())
            # One that was written before a field existed has the default there.
            if read_config(there["config"]) == self.tuning.config:
                asked["config"] = there["config"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} cannot be read ({error!r}); restore it, or choose another --out") from error
        differences = find_differences(there, asked, "")
        if differences:
            raise RunExistsError(
                f"{self.folder} holds another tuning: {'; '.join(differences)}. Choose another folder with --out"
            )

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        busy = f"the tuning in {self.folder} is being driven"
        with (self.folder / "lock").open("a+b", buffering=0) as file, hold_lock(file, busy):
            self._check_folder()
            write_atomic(self.folder / "tune.json", json.dumps(self.tuning.as_json(), indent=2) + "\n")
            yield


def rank(statuses: Sequence[TrialStatus]) -> list[TrialStatus]:
    """The finished trials, the best first."""
    finished = [status for status in statuses if status.state == "finished"]
    return sorted(finished, key=lambda status: -(status.value or 0.0))


def write_results(tuner: Tuner) -> list[Path]:
    """Save the best configuration, a table of all trials and the figures, once a trial is finished; returns paths."""
    folder, statuses, best = tuner.folder, tuner.statuses, tuner.best
    paths = [folder / "trials.csv"]
    with paths[0].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        seeds = [f"seed_{seed}" for seed in range(tuner.tuning.num_seeds)]
        writer.writerow(["trial", "state", "value", *seeds, *tuner.tuning.ranges, "cause"])
        for each in statuses:
            by_seed = each.by_seed or [""] * len(seeds)
            params = [each.params[name] for name in tuner.tuning.ranges]
            writer.writerow([each.number, each.state, each.value, *by_seed, *params, each.cause or ""])
    if best is None:
        return paths
    paths.append(folder / "best.toml")
    write_atomic(paths[-1], _format_best(tuner, best))
    kinds = {"finished": False, "pruned": True}
    points = [
        TrialPoint(each.number, each.value, kinds[each.state])
        for each in statuses
        if each.state in kinds and each.value is not None
    ]
    title = f"{tuner.tuning.preset} on {tuner.tuning.config.env_name}"
    paths += style.save(draw_history(points, title), folder, "history")
    importance = tuner.importance()
    if importance:
        paths += style.save(draw_importance(importance, BEST_SHARE, title), folder, "importance")
    return paths


def _format_best(tuner: Tuner, best: TrialStatus) -> str:
    """The best trial as a grid, with a comment about where it comes from."""
    data = tuner.tuning.grid(tuner.tuning.preset, best.params).as_json()
    overrides = data.pop("overrides")
    data["seeds"] = tuner.tuning.num_seeds
    lines = [
        f"# Trial {best.number}, the best of {len(tuner.statuses)}. Its value is {best.value:.6g}: the mean over seeds",
        "# of the evaluations in the second half of the run.",
        *(f"{name} = {_toml(value)}" for name, value in data.items()),
        "",
        "[overrides]",
        # Dotted names are text: a part and a setting of it may both be there.
        *(f"{_toml(name) if '.' in name else name} = {_toml(value)}" for name, value in overrides.items()),
    ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value in TOML, which has numbers, text and lists of them as JSON has them, and no null."""
    return json.dumps("none" if value is None else value, ensure_ascii=False)


def _make_distribution(each: Range) -> BaseDistribution:
    if not isinstance(each, Bounds):
        return CategoricalDistribution(each.values)
    if isinstance(each.low, int) and isinstance(each.high, int):
        return IntDistribution(each.low, each.high, log=each.log)
    return FloatDistribution(each.low, each.high, log=each.log)


def _open_study(
    storage: optuna.storages.BaseStorage | None, sampler: optuna.samplers.BaseSampler | None = None
) -> optuna.Study:
    """A study that maximizes, new or as it is stored; Optuna's message that there is a new one is left out."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(
            storage=storage, sampler=sampler, study_name=STUDY, direction="maximize", load_if_exists=True
        )
    finally:
        optuna.logging.set_verbosity(verbosity)


def _read_evaluations(path: Path) -> dict[int, float]:
    """The mean return of each evaluation of a run of one seed, by step."""
    run = read_run(path, path.name)
    if run.state == "finished" and run.step < run.config.whole_steps:
        raise ValueError(f"its metrics end at step {run.step:,} of {run.config.whole_steps:,}; remove {path}")
    return run.evaluations[run.config.seed]


def _has_diverged(status: RunStatus) -> bool:
    return status.state is State.FAILED and (status.cause or "").startswith(NonFiniteTrainingError.__name__)
