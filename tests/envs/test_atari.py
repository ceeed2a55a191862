"""Atari games: what each protocol does around the game, and that the game itself is left as it is."""

from collections import Counter
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from ale_py import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from qemrl.envs.gym.atari import ATARI_PROTOCOLS, AreaResize, AtariProtocol, make_atari, protocol_for
from qemrl.envs.gym.host_envs import HostEnvs, make_host_envs
from qemrl.types import EnvSpec

PLAIN = AtariProtocol("plain", noop_max=0)


class Recorder:
    """An ALE that writes down which actions it was given."""

    def __init__(self, ale):
        self.ale, self.acted = ale, []

    def act(self, action, strength):
        self.acted.append(action)
        return self.ale.act(action, strength)

    def __getattr__(self, name):
        return getattr(self.ale, name)


def play(env, seed, actions):
    """Observations and rewards of an episode, from its reset on."""
    observations, rewards = [env.reset(seed=seed)[0]], []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        rewards.append(reward)
        assert not terminated
        assert not truncated
    return np.stack(observations), np.array(rewards)


def by_area(frame, size):
    """A frame resized by splitting its cells until they fit the new ones, which are then averaged."""
    height, width = frame.shape[:2]
    rows, columns = np.lcm(height, size), np.lcm(width, size)
    fine = frame.astype(np.float64).repeat(rows // height, 0).repeat(columns // width, 1)
    cells = fine.reshape(size, rows // size, size, columns // size, *frame.shape[2:])
    return np.floor(cells.mean((1, 3)) + 0.5 + 1e-9).astype(np.uint8)


@pytest.mark.parametrize("size", [84, 64, 80])
@pytest.mark.parametrize("colors", [(), (3,)])
def test_frames_are_resized_by_area(size, colors):
    rng = np.random.default_rng(0)
    for frame in (rng.integers(0, 256, (210, 160, *colors)), np.full((210, 160, *colors), 255)):
        frame = frame.astype(np.uint8)
        np.testing.assert_array_equal(AreaResize(210, 160, size)(frame), by_area(frame, size))


def test_observations_are_the_maximum_over_the_last_two_frames_resized_and_stacked():
    env, raw = make_atari("PongNoFrameskip-v4", PLAIN), gymnasium.make("PongNoFrameskip-v4", obs_type="grayscale")
    observation, _ = env.reset(seed=0)
    frames = [by_area(raw.reset(seed=5)[0], 84)] * 4
    np.testing.assert_array_equal(observation, frames)
    for action in np.random.default_rng(0).integers(0, 6, 40):
        observation, reward, *_ = env.step(action)
        shown, rewards = zip(*(raw.step(action)[:2] for _ in range(4)), strict=True)
        frames = [*frames[1:], by_area(np.maximum(shown[2], shown[3]), 84)]
        np.testing.assert_array_equal(observation, frames)
        assert reward == sum(rewards)
    assert len(np.unique(observation)) > 3


def test_an_action_lasts_four_frames_whatever_the_id_says():
    for env_id in ("ALE/Pong-v5", "PongNoFrameskip-v4"):
        env = make_atari(env_id)
        env.reset(seed=0)
        before = env.ale.getEpisodeFrameNumber()
        for _ in range(5):
            env.step(0)
        assert env.ale.getEpisodeFrameNumber() == before + 20


def test_the_spec_of_a_game_says_frames_are_stacked():
    spec = make_host_envs("ALE/Qbert-v5", 1).spec
    assert spec == EnvSpec("ALE/Qbert-v5", (4, 84, 84), "uint8", 6, stacked_frames=4)
    small = replace(protocol_for("ALE/Pong-v5"), screen=42, stack=2, grayscale=False, full_action_space=True)
    spec = make_host_envs("ALE/Pong-v5", 1, protocol=small).spec
    assert (spec.observation_shape, spec.num_actions, spec.stacked_frames) == ((2, 42, 42, 3), 18, 2)


def test_sticky_actions_repeat_the_last_one_at_a_quarter_of_frames():
    env = make_atari("ALE/Pong-v5")
    env.reset(seed=0)
    env.ale = Recorder(env.ale)
    for k in range(500):
        env.step(2 + k % 2)
    frames = np.array([action.value for action in env.ale.acted]).reshape(500, 4)
    chosen = np.array([env._actions[2 + k % 2].value for k in range(500)])
    held = (frames[1:] != chosen[1:, None]).mean(0)  # after k frames with the chance 0.25^k
    np.testing.assert_allclose(held, 0.25 ** np.arange(1, 5), atol=3 * np.sqrt(0.25 * 0.75 / 500))
    assert held[0] > held[1] > 0


def test_stickiness_decides_whether_a_seed_and_an_action_matter():
    up, down = [2] * 25, [3] * 25
    free = make_atari("PongNoFrameskip-v4", PLAIN)
    np.testing.assert_array_equal(play(free, 1, up)[0], play(free, 2, up)[0])
    assert (play(free, 1, up)[0] != play(free, 1, down)[0]).any()
    sticky = make_atari("ALE/Pong-v5")
    varied = np.random.default_rng(0).integers(0, 6, 60)
    assert (play(sticky, 1, varied)[0] != play(sticky, 2, varied)[0]).any()
    np.testing.assert_array_equal(play(sticky, 1, varied)[0], play(sticky, 1, varied)[0])


@pytest.mark.parametrize("game", ["BeamRider", "Berzerk", "Pong"])
def test_episodes_carry_no_trace_of_the_one_before(game):
    """ALE's own reset leaves one in some games, among them the first two of these."""
    env = make_atari(f"{game}NoFrameskip-v4")
    actions = np.random.default_rng(1).integers(0, len(env._actions), 30)
    first = play(env, 3, actions)
    play(env, 4, actions[::-1])
    for part, true in zip(play(env, 3, actions), first, strict=True):
        np.testing.assert_array_equal(part, true)


def test_episodes_begin_with_up_to_thirty_frames_without_action():
    env = make_atari("PongNoFrameskip-v4")
    counts = Counter()
    for seed in range(40):
        env.reset(seed=seed)
        counts[env.ale.getEpisodeFrameNumber()] += 1
    assert min(counts) >= 1
    assert 20 < max(counts) <= 30
    assert len(counts) > 12


def test_fire_is_pressed_at_the_start_where_the_protocol_says_so():
    env = make_atari("BreakoutNoFrameskip-v4", replace(PLAIN, fire_reset=True))
    env.ale = Recorder(env.ale)
    env.reset(seed=0)
    assert [action.name for action in env.ale.acted] == ["FIRE"] * 4 + ["RIGHT"] * 4
    env = make_atari("BreakoutNoFrameskip-v4", PLAIN)
    env.ale = Recorder(env.ale)
    env.reset(seed=0)
    assert env.ale.acted == []


def lives_of_a_game(protocol):
    """The steps of one game of Breakout in which a life was lost or the game ended, with the lives left."""
    envs = make_host_envs("BreakoutNoFrameskip-v4", 1, protocol=protocol)
    envs.reset(0)
    told = []
    for k in range(1500):
        before = envs.vector.envs[0].ale.lives()
        step = envs.step(np.array([k % 2]))  # FIRE every other step, and never move
        after = envs.vector.envs[0].ale.lives()
        if step.terminated[0] or step.ended[0] or after != before:
            told.append((step, before))
        else:
            assert step.observation is step.next_observation
        if step.ended[0]:
            return told
    raise AssertionError("the game never ended")


def test_a_lost_life_is_a_zero_discount_while_the_game_goes_on_in_the_papers():
    told = lives_of_a_game(ATARI_PROTOCOLS["paper"])
    assert [lives for _, lives in told] == [5, 4, 3, 2, 1]
    for step, lives in told:
        assert step.terminated[0]
        assert not step.truncated[0]
        assert step.ended[0] == (lives == 1)
        assert step.restarted[0] == (lives == 1)
        assert step.valid[0]
        if lives > 1:
            np.testing.assert_array_equal(step.observation, step.next_observation)


def test_a_lost_life_begins_an_episode_without_a_new_game_in_the_release():
    told = lives_of_a_game(ATARI_PROTOCOLS["release"])
    assert [lives for _, lives in told] == [5, 4, 3, 2, 1]
    for step, lives in told:
        assert step.terminated[0]
        assert step.ended[0] == (lives == 1)
        assert step.restarted[0]
        assert (step.observation[0] == step.observation[0, -1]).all()
        assert (step.observation != step.next_observation).any()


def test_a_lost_life_is_nothing_in_evaluation_and_under_sticky_protocols():
    for protocol in (ATARI_PROTOCOLS["paper"].for_evaluation(), ATARI_PROTOCOLS["release"].for_evaluation()):
        told = lives_of_a_game(protocol)
        assert [bool(step.terminated[0]) for step, _ in told] == [False] * 4 + [True]
        assert [bool(step.ended[0]) for step, _ in told] == [False] * 4 + [True]
    assert ATARI_PROTOCOLS["dopamine"].life_loss == ATARI_PROTOCOLS["machado"].life_loss == "ignored"


@pytest.mark.parametrize("name", ["paper", "release"])
def test_games_come_back_in_the_middle_with_lives_lost(name):
    envs = make_host_envs("BreakoutNoFrameskip-v4", 2, protocol=ATARI_PROTOCOLS[name])
    envs.reset(4)
    rng = np.random.default_rng(0)
    lost = 0
    for row in rng.integers(0, 4, (120, 2)):
        step = envs.step(row)
        lost += int((step.terminated & ~step.ended).sum())
    assert lost > 1
    state = envs.state()
    assert (state["length"] > 0).all()
    again = make_host_envs("BreakoutNoFrameskip-v4", 2, protocol=ATARI_PROTOCOLS[name])
    assert again.restore(state) == []
    for row in rng.integers(0, 4, (50, 2)):
        for part, true in zip(again.step(row), envs.step(row), strict=True):
            np.testing.assert_array_equal(part, true)


def test_rewards_are_those_of_the_game():
    envs = make_host_envs("ALE/Qbert-v5", 1)
    envs.reset(0)
    rewards = [float(envs.step(np.array([5])).reward[0]) for _ in range(70)]  # down the stairs, 25 points a step
    assert set(rewards) == {0.0, 25.0}


def test_long_games_are_truncated():
    envs = make_host_envs("ALE/Pong-v5", 1, protocol=replace(protocol_for("ALE/Pong-v5"), max_frames=80))
    envs.reset(0)
    steps = [envs.step(np.array([0])) for _ in range(40)]
    assert [k for k, step in enumerate(steps) if step.truncated[0]] == [19, 39]
    assert not any(step.terminated[0] for step in steps)
    assert (steps[19].observation != steps[19].next_observation).any()


def test_ids_stand_for_protocols():
    assert protocol_for("ALE/Pong-v5") is ATARI_PROTOCOLS["machado"]
    assert protocol_for("PongNoFrameskip-v4") is ATARI_PROTOCOLS["paper"]
    assert protocol_for("PongNoFrameskip-v0").sticky_actions == 0.25
    assert protocol_for("QbertNoFrameskip-v4", "sb3") is ATARI_PROTOCOLS["sb3"]
    assert {name: protocol.name for name, protocol in ATARI_PROTOCOLS.items()} == {n: n for n in ATARI_PROTOCOLS}


@pytest.mark.parametrize(
    ("env_id", "name", "message"),
    [
        ("ALE/Pong-v5", "paper", r"probability 0\.25, but the protocol 'paper' says 0\.0.*dopamine, machado"),
        ("PongNoFrameskip-v4", "dopamine", "paper, release, sb3"),
        ("Pong-v4", None, r"random number of frames.*PongNoFrameskip-v4 or ALE/Pong-v5"),
        ("ALE/Pong-v5", "papers", "unknown Atari protocol 'papers'; there are paper, release"),
        ("CartPole-v1", "paper", "CartPole-v1 is no Atari game"),
    ],
)
def test_wishes_that_contradict_each_other_are_errors(env_id, name, message):
    with pytest.raises(ValueError, match=message):
        protocol_for(env_id, name)


def test_making_contradicts_too():
    with pytest.raises(ValueError, match="'paper' says"):
        make_host_envs("ALE/Pong-v5", 1, protocol=ATARI_PROTOCOLS["paper"])
    with pytest.raises(ValueError, match="CartPole-v1 is no Atari game"):
        make_host_envs("CartPole-v1", 1, protocol=ATARI_PROTOCOLS["paper"])
    with pytest.raises(ValueError, match=r"sticky_actions is a probability, got 1\.5"):
        AtariProtocol("odd", sticky_actions=1.5)
    with pytest.raises(ValueError, match="frame_skip must be at least 1, got 0"):
        AtariProtocol("odd", frame_skip=0)


def test_pictures_are_the_screen_in_color():
    envs = make_host_envs("ALE/Pong-v5", 1, render=True)
    envs.reset(0)
    picture = envs.render()
    assert picture.shape == (210, 160, 3)
    assert picture.dtype == np.uint8
    assert (picture[..., 0] != picture[..., 2]).any()
    with pytest.raises(ValueError, match="render=True"):
        make_host_envs("ALE/Pong-v5", 1).render()


def test_the_vector_environment_of_ale_gives_the_same_in_both_of_its_modes():
    def transitions(mode):
        vector = AtariVectorEnv(
            "breakout", 2, num_threads=1, max_num_frames_per_episode=60, autoreset_mode=mode, noop_max=0
        )
        envs = HostEnvs(vector, "ALE/Breakout-v5", 4)
        observation = envs.reset(0).observation
        rows = [[], []]
        while min(map(len, rows)) < 40:
            step = envs.step(np.array([len(row) % 4 for row in rows]))
            for place in np.flatnonzero(step.valid):
                rows[place].append((observation[place], step.truncated[place], step.next_observation[place]))
            observation = step.observation
        assert "cannot restore" in envs.restore(envs.state())[0]
        return rows

    one, other = transitions(AutoresetMode.NEXT_STEP), transitions(AutoresetMode.SAME_STEP)
    for place in range(2):
        assert sum(row[1] for row in one[place]) >= 2
        for row, right in zip(one[place][:40], other[place][:40], strict=True):
            for part, true in zip(row, right, strict=True):
                np.testing.assert_array_equal(part, true)
