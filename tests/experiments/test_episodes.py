"""Episodes step by step: the same episode again, what is drawn of it, and what is written down."""

import csv
import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from qemrl import api
from qemrl.estimators import QEM, TailVariance, crossing_rate, r_squared
from qemrl.experiments.episodes import (
    CannotDrawError,
    Moment,
    _collect,
    play_episode,
    watch_episode,
    write_episode,
)
from qemrl.plotting.distributions import PALETTE, Episode, StepPrediction, choose_colors, draw_episode

SMALL = {"network.widths": (16,), "replay.capacity": 400, "learning_starts": 64, "batch_size": 16}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> api.TrainableAgent:
    """QEM-DQN after a few hundred steps on Gymnasium's CartPole, as it comes back from its run directory."""
    agent = api.make("qem-dqn", env="CartPole-v1", seed=2, overrides=SMALL).learn(300, progress=False)
    return api.load(agent.save(tmp_path_factory.mktemp("runs") / "run"))


@pytest.fixture(scope="module")
def episode(trained) -> Episode:
    return watch_episode(trained, seed=5)


def test_the_same_seed_gives_the_same_episode_and_another_one_another(trained):
    def play(seed: int) -> list[Moment]:
        return list(play_episode(trained, seed, render=False))

    first, again, other = play(5), play(5), play(6)
    assert len(first) == len(again)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.observation, two.observation)
        assert (one.action, one.reward, one.frame) == (two.action, two.reward, None)
    assert not np.array_equal(first[0].observation, other[0].observation)


def test_an_episode_is_what_the_agent_meets_and_does(trained):
    moments = list(play_episode(trained, 5, render=True))
    assert 8 < len(moments) <= 500
    greedy = [moment.action == moment.q.argmax() for moment in moments]
    assert np.mean(greedy) > 0.95  # ε of evaluation is 0.001
    for before, after in itertools.pairwise(moments):
        # The cart moves by its velocity in 0.02 s: observations follow one another and are not those after.
        assert after.observation[0] == pytest.approx(before.observation[0] + 0.02 * before.observation[1], abs=1e-6)
        np.testing.assert_allclose(before.q, trained.q(before.observation), rtol=1e-5)
    frames = [moment.frame for moment in moments if moment.frame is not None]
    assert len(frames) == len(moments)
    assert {frame.shape for frame in frames} == {(400, 600, 3)}
    assert not np.array_equal(frames[0], frames[-1])


def test_predictions_have_the_numbers_of_the_distributions(trained, episode):
    assert [prediction.step for prediction in episode.predictions] == sorted(
        {prediction.step for prediction in episode.predictions}
    )
    assert (episode.predictions[0].step, episode.predictions[-1].step) == (0, len(episode.q) - 1)
    assert len(episode.predictions) == 5
    qem = QEM(order=4, variance=TailVariance(1.5))
    moments = list(play_episode(trained, 5, render=False))
    for prediction in episode.predictions:
        moment = moments[prediction.step]
        dist = trained.predict_distribution(moment.observation)
        values, levels = np.asarray(dist.values, np.float64), np.asarray(dist.levels, np.float64)
        np.testing.assert_array_equal(prediction.values, values)
        np.testing.assert_allclose(prediction.q_mean, values.mean(-1))
        np.testing.assert_allclose(prediction.q_qem, qem.mean(values, levels))
        np.testing.assert_allclose(prediction.q_qem, moment.q, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(prediction.r_squared, r_squared(qem, values, levels))
        np.testing.assert_allclose(prediction.crossing_rate, crossing_rate(values))
        assert prediction.chosen == moment.action


def test_the_figure_has_a_frame_and_a_panel_for_each_moment_and_two_strips(episode):
    figure = draw_episode(episode)
    assert len(figure.axes) == 5 + 5 + 2
    titles = [axis.get_title() for axis in figure.axes]
    for number, prediction in enumerate(episode.predictions, 1):
        assert f"{number}: step {prediction.step}" in titles
        assert prediction.r_squared is not None
        assert any(f"R² {prediction.r_squared[prediction.chosen]:.3f}" in title for title in titles)
    strip, ribbon = figure.axes[-2:]
    for action in range(2):
        np.testing.assert_array_equal(np.asarray(strip.lines[action].get_ydata()), episode.q[:, action])
    assert np.asarray(ribbon.images[0].get_array()).shape == (1, len(episode.actions), 3)


def test_what_is_drawn_is_written_down(episode, tmp_path):
    paths = write_episode(episode, tmp_path)
    assert [path.name for path in paths] == ["figure.png", "figure.svg", "data.csv", "distributions.csv"]
    with paths[2].open(encoding="utf-8") as file:
        steps = list(csv.DictReader(file))
    assert [int(row["action"]) for row in steps] == episode.actions.tolist()
    assert sum(float(row["reward"]) for row in steps) == len(steps)
    with paths[3].open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 * 2 * 51
    first = [row for row in rows if row["step"] == "0" and row["action"] == "1"]
    np.testing.assert_array_equal([float(row["value"]) for row in first], episode.predictions[0].values[1])
    assert float(first[0]["prob"]) == pytest.approx(1 / 51)


@pytest.mark.parametrize(
    ("preset", "env", "kind"),
    [
        ("dqn", "CartPole-v1", "scalar"),
        ("c51", "jax/cartpole", "categorical"),
        ("qr-dqn", "jax/cartpole", "quantiles"),
        ("iqn", "CartPole-v1", "quantiles"),
        ("iqem-dqn", "minatar/breakout", "quantiles"),
    ],
)
def test_every_preset_can_be_watched_on_both_kinds_of_environment(preset, env, kind, tmp_path):
    agent = api.load(api.make(preset, env=env, overrides=SMALL).save(tmp_path / "run"))
    episode = watch_episode(agent, seed=1, predictions=3)
    assert episode.kind == kind
    assert f"{preset} on {env}, seed 0: an episode of {len(episode.q)} steps" in episode.title
    for prediction in episode.predictions:
        assert prediction.frame is not None
        assert np.isfinite(prediction.q_mean).all()
        assert (prediction.q_qem is not None) == (kind == "quantiles")
        assert (prediction.probs is not None) == (kind == "categorical")
        # What the agent itself takes Q to be is one of the two.
        own = prediction.q_qem if preset == "iqem-dqn" else prediction.q_mean
        assert own is not None
        np.testing.assert_allclose(own, episode.q[prediction.step], rtol=1e-3, atol=1e-4)
    panels = 3 * (1 if kind == "scalar" else 2) + 2
    assert len(draw_episode(episode).axes) == panels
    names = {path.name for path in write_episode(episode, tmp_path / "out")}
    assert ("distributions.csv" in names) == (kind != "scalar")


def test_an_environment_without_pictures_is_shown_without_frames(trained, monkeypatch):
    def render(_):
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed")

    monkeypatch.setattr(CartPoleEnv, "render", render)
    with pytest.raises(CannotDrawError, match="CartPole-v1 gives no pictures: pygame is not installed"):
        next(play_episode(trained, 0, render=True))
    episode = watch_episode(trained, seed=0, predictions=2)
    assert "gives no pictures" in episode.note
    figure = draw_episode(episode)
    assert len(figure.axes) == 2 + 2
    assert figure.axes[0].get_title().startswith("1: step 0\n")


def test_a_long_episode_keeps_a_few_moments_equally_far_apart_and_the_last():
    def moments(count: int):
        for step in range(count):
            yield Moment(np.array([step]), np.zeros(2), 0, 1.0, None)

    for count in (1, 7, 8, 100, 1000):
        log, kept = _collect(moments(count), most=8)
        assert len(log) == count
        assert len(kept) <= 9
        assert all(moment.observation[0] == step for step, moment in kept.items())
        steps = sorted(kept)
        assert (steps[0], steps[-1]) == (0, count - 1)
        assert len(set(np.diff(steps[:-1]).tolist())) <= 1
        assert len(kept) >= min(count, 4)


def test_of_many_actions_the_most_chosen_have_colors(episode):
    count = 18
    actions = np.array([17] * 5 + [3] * 4 + [9] * 3 + [0, 1, 2, 4])
    q = np.zeros((len(actions), count))
    values = np.tile(np.linspace(0, 1, 4), (count, 1))
    levels = np.tile([0.125, 0.375, 0.625, 0.875], (count, 1))
    zeros = np.zeros(count)
    prediction = StepPrediction(0, 17, None, levels, values, None, zeros, zeros, values, zeros, zeros)
    many = Episode(
        "many", "quantiles", tuple(map(str, range(count))), q, actions, np.ones(len(actions)), [prediction], ""
    )
    colors = choose_colors(many)
    named = {action for action, color in colors.items() if color in PALETTE}
    assert named == {17, 3, 9, 0, 1, 2}
    assert len({colors[action] for action in named}) == 6
    labels = [text.get_text() for text in draw_episode(many).legends[0].get_texts()]
    assert "other actions" in labels
    assert "other actions" not in [text.get_text() for text in draw_episode(episode).legends[0].get_texts()]


def test_bad_requests_are_refused(trained):
    with pytest.raises(ValueError, match=r"must lie in \[0, 2³²\), got -1"):
        next(play_episode(trained, -1, render=False))
    with pytest.raises(ValueError, match="at least one prediction, got 0"):
        watch_episode(trained, 0, 0)
