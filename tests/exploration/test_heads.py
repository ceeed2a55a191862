"""HeadSampling: who acts for how long, votes against brute force, and heads and masks of members in both loops."""

from collections import Counter
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qemrl.agents.value import ValueAgent, ValueConfig
from qemrl.distributional.bootstrap import Bootstrapped
from qemrl.distributional.quantiles import FixedQuantiles
from qemrl.exploration import ActionContext, EpsilonGreedy, HeadSampling
from qemrl.training.compiled_loop import CompiledLoop
from qemrl.training.config import RunConfig, configure
from qemrl.training.loops import Loop, make_loop
from qemrl.training.schedule import Keys
from qemrl.types import EnvSpec, ReturnDist

SPEC = EnvSpec("none", (1,), "float32", 4)


def context(q, mask=None, first=None) -> ActionContext:
    q = jnp.asarray(q, jnp.float32)
    first = np.zeros(len(q), bool) if first is None else first
    mask = None if mask is None else jnp.asarray(mask)
    return ActionContext(None, ReturnDist(q[..., None], np.array([0.5])), q, mask, jnp.asarray(first), jnp.int32(0))


@cache
def compiled(exploration: HeadSampling, evaluating: bool):
    return jax.jit(partial(exploration.select_action, evaluating=evaluating))


def act(exploration: HeadSampling, heads, now: ActionContext, seed: int = 0, evaluating: bool = False):
    """The actions, and the heads from here on."""
    actions, after = compiled(exploration, evaluating)(jnp.asarray(heads, jnp.int32), now, jax.random.key(seed))
    assert actions.dtype == after.dtype == jnp.int32
    return np.asarray(actions), np.asarray(after)


OWN = np.broadcast_to(np.eye(4), (600, 4, 4))
"""Four heads, each of which prefers another action: what is done says who acts."""


@pytest.mark.parametrize("evaluating", [False, True])
def test_a_head_acts_until_an_episode_begins_and_then_one_is_drawn(evaluating):
    """In evaluation, too, if it is by head."""
    exploration = HeadSampling("head", evaluation=0.0)
    heads, rng, changes, draws = np.asarray(exploration.init(600, SPEC)), np.random.default_rng(0), 0, Counter()
    assert (heads == 0).all()
    for number in range(8):
        first = np.ones(600, bool) if number == 0 else rng.random(600) < 0.3
        actions, after = act(exploration, heads, context(OWN, first=first), number, evaluating)
        np.testing.assert_array_equal(actions, after)
        np.testing.assert_array_equal(after[~first], heads[~first])
        draws.update(after[first].tolist())
        changes += (after != heads).sum()
        heads = after
    total = sum(draws.values())
    spread = np.sqrt(total * 0.25 * 0.75)
    assert set(draws) == {0, 1, 2, 3}
    assert max(abs(count - total / 4) for count in draws.values()) < 4 * spread
    assert abs(changes - 0.75 * total) < 4 * spread  # no head is avoided, nor the one before


def test_environments_draw_their_heads_apart():
    _, heads = act(HeadSampling(), np.zeros(600), context(OWN, first=np.ones(600, bool)))
    pairs = Counter(zip(heads[::2].tolist(), heads[1::2].tolist(), strict=True))
    assert len(pairs) == 16
    _, again = act(HeadSampling(), np.zeros(600), context(OWN, first=np.ones(600, bool)))
    _, others = act(HeadSampling(), np.zeros(600), context(OWN, first=np.ones(600, bool)), 1)
    np.testing.assert_array_equal(heads, again)
    assert 0.6 < (heads != others).mean() < 0.9


def vote_by_hand(q, mask) -> int:
    """The action of most heads, of equals the one with the largest mean, of these the first."""
    votes = Counter(int(np.where(mask, row, -np.inf).argmax()) for row in q)
    most = max(votes.values())
    return max((action for action, count in votes.items() if count == most), key=lambda a: (q.mean(0)[a], -a))


@pytest.mark.parametrize("masked", [False, True])
def test_evaluation_counts_votes_as_by_hand(masked):
    rng = np.random.default_rng(1)
    q = rng.normal(size=(800, 5, 4)).astype(np.float32)
    mask = rng.random((800, 4)) < 0.6 if masked else np.ones((800, 4), bool)
    mask[np.arange(800), rng.integers(4, size=800)] = True
    heads = rng.integers(5, size=800)
    now = context(q, mask if masked else None, first=np.ones(800, bool))
    actions, after = act(HeadSampling(evaluation=0.0), heads, now, evaluating=True)
    expected = [vote_by_hand(rows, allowed) for rows, allowed in zip(q, mask, strict=True)]
    np.testing.assert_array_equal(actions, expected)
    np.testing.assert_array_equal(after, heads)  # votes draw nobody
    by_mean = np.where(mask, q.mean(1), -np.inf).argmax(-1)
    assert 0.1 < (actions != by_mean).mean() < 0.6


def test_votes_win_over_means_and_means_over_the_order():
    """Two of three heads want action 1, though the first is sure of 0; with a vote each, means decide; masks first."""
    sure = [[9, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]]
    apart = [[2, 0, 0, 0], [0, 0, 3, 0], [0, 1, 0, 0]]
    now = context(
        [sure, apart, sure, apart], [[True] * 4, [True] * 4, [True, False, True, True], [True] * 2 + [False] * 2]
    )
    voted, _ = act(HeadSampling(evaluation=0.0), np.zeros(4), now, evaluating=True)
    averaged, _ = act(HeadSampling("mean", evaluation=0.0), np.zeros(4), now, evaluating=True)
    assert voted.tolist() == [1, 2, 0, 0]
    assert averaged.tolist() == [0, 2, 0, 0]
    own, _ = act(HeadSampling("head", evaluation=0.0), [0, 1, 2, 1], now, evaluating=True)
    assert own.tolist() == [0, 2, 0, 0]


@pytest.mark.parametrize("evaluate_by", ["vote", "mean", "head"])
def test_a_forbidden_action_is_never_chosen_though_all_want_it(evaluate_by):
    q = np.broadcast_to([5.0, 9.0, 1.0, 0.0], (500, 3, 4))
    mask = np.broadcast_to([True, False, True, True], (500, 4))
    for epsilon in (0.0, 0.5):
        exploration = HeadSampling(evaluate_by, epsilon=epsilon, evaluation=epsilon)
        for evaluating in (False, True):
            actions, _ = act(exploration, np.zeros(500), context(q, mask), evaluating=evaluating)
            assert set(actions) == ({0} if epsilon == 0 else {0, 2, 3})


def test_random_actions_are_as_frequent_as_training_and_evaluation_say():
    """With ε = 0.2 another of four actions than the head's is taken in 15% of all steps."""
    now, heads = context(np.broadcast_to(np.eye(4), (8_000, 4, 4))), np.full(8_000, 2)
    exploration = HeadSampling("head", epsilon=0.2, evaluation=0.6)
    for evaluating, share in ((False, 0.15), (True, 0.45)):
        actions, after = act(exploration, heads, now, evaluating=evaluating)
        assert abs((actions != 2).mean() - share) < 0.02
        np.testing.assert_array_equal(after, heads)
    assert exploration.scheduled(jnp.int32(10**6), 0) == {"explore/epsilon": np.float32(0.2)}
    assert (act(HeadSampling(), heads, now)[0] == 2).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ValueConfig(exploration=HeadSampling()), "one of several heads, and FixedQuantiles has one; use Boot"),
        (lambda: HeadSampling(epsilon=1.5), "epsilon must be a probability, got 1.5"),
        (lambda: HeadSampling(evaluation=-0.1), "evaluation must be a probability, got -0.1"),
    ],
)
def test_heads_that_cannot_be_drawn_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_whatever_has_several_members_has_heads_to_draw():
    for representation in (FixedQuantiles(8, num_heads=2), Bootstrapped(FixedQuantiles(8), 2)):
        config = ValueConfig(representation=representation, exploration=HeadSampling())
        assert replace(config, exploration=EpsilonGreedy()) == ValueConfig(representation=representation)


STEPS, MIDDLE, LEARNING, ENVS, HEADS = 120, 100, 80, 2, 3
LOOPS = ("CartPole-v1", "jax/cartpole")


def run(env: str) -> RunConfig:
    representation = Bootstrapped(FixedQuantiles(3), HEADS, mask_probability=0.5, prior_scale=3.0)
    settings = {
        "representation": representation,
        "network.widths": [8],
        "replay": {"capacity": 300, "n_step": 1},
        "learning_starts": LEARNING,
        "batch_size": 8,
        "num_envs": ENVS,
    }
    config = configure("bootstrapped-qr-dqn", env, STEPS, overrides=settings)
    return replace(config, evaluation_episodes=1, log_every=STEPS, evaluate_every=STEPS, checkpoint_every=STEPS)


class Played:
    """A loop that is looked at after each step of its environments, and a checkpoint in the middle."""

    def __init__(self, env: str) -> None:
        self.loop = loop = make_loop(run(env))
        assert isinstance(loop, CompiledLoop) == env.startswith("jax/")
        self.agent, self.params = loop.agent, loop.params(0)
        self.start, self.middle = self.heads_and_firsts()[0], ({}, {})
        self.firsts, self.heads = [], []
        for step in range(ENVS, STEPS + 1, ENVS):
            self.firsts.append(self.heads_and_firsts()[1])
            assert loop.advance(step, False) is not None
            self.heads.append(self.heads_and_firsts()[0])
            if step == MIDDLE:
                self.middle = checkpoint(loop), loop.meta()
        self.last = checkpoint(loop)

    def heads_and_firsts(self) -> tuple[np.ndarray, np.ndarray]:
        """The head of each environment, and whether an episode begins there."""
        loop = self.loop
        if isinstance(loop, CompiledLoop):
            return np.array(loop.state.actor[0]), np.array(loop.state.episodes.first[0])
        return np.array(loop.loops[0].actor), loop.loops[0].first.copy()

    def replay(self, name: str) -> np.ndarray:
        """What was stored, [rows, envs, ...]."""
        array = self.last.get(f"0/replay/{name}")
        array = self.last[f".replay.{name}"][0] if array is None else array
        return array[: STEPS // ENVS].reshape(STEPS // ENVS, ENVS, -1)


def checkpoint(loop: Loop) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in loop.arrays().items()}


play = cache(Played)


@pytest.mark.parametrize("env", LOOPS)
def test_in_a_loop_the_head_of_the_episode_acts(env):
    """Before the first update all actions are those that one head prefers, with its prior."""
    played = play(env)
    before, drawn = played.start, 0
    for first, heads in zip(played.firsts, played.heads, strict=True):
        np.testing.assert_array_equal(heads[~first], before[~first])
        drawn, before = drawn + first.sum(), heads
    assert drawn > 4
    assert len({tuple(heads) for heads in played.heads}) > 3
    rows = LEARNING // ENVS
    assert isinstance(played.agent, ValueAgent)
    observations, actions = played.replay("observation")[:rows], played.replay("action")[:rows, :, 0]
    prediction = played.agent.predict(played.params, jnp.asarray(observations.reshape(rows * ENVS, -1)), "report", None)
    best = np.asarray(jnp.argmax(jnp.mean(prediction.dist.values, axis=-1), axis=-1)).reshape(rows, ENVS, HEADS)
    heads = np.array(played.heads[:rows])
    np.testing.assert_array_equal(actions, np.take_along_axis(best, heads[..., None], axis=-1)[..., 0])
    assert (best != best[..., :1]).mean() > 0.1  # they do not agree


@pytest.mark.parametrize("env", LOOPS)
def test_heads_and_masks_go_on_from_a_checkpoint_bit_for_bit(env):
    """The episode that is under way goes on with its head, in the loop that compiles steps and in the other."""
    played = play(env)
    # The compiled loop has all that changes in its state, and takes long to compile.
    again = played.loop if isinstance(played.loop, CompiledLoop) else make_loop(run(env))
    arrays, meta = played.middle
    assert again.restore(MIDDLE, arrays, meta) == []
    again.advance(STEPS, False)
    found = again.arrays()
    assert found.keys() == played.last.keys()
    for name, array in played.last.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    learned = [name for name in found if "params" in name and "prior" not in name]
    assert all((found[name] != arrays[name]).any() for name in learned)


def test_both_loops_store_the_masks_that_were_drawn_with_each_step():
    """One draw for each step, environment and head, whatever is learned from it how often."""
    masks = [play(env).replay("member_mask") for env in LOOPS]
    agent, keys = play(LOOPS[0]).agent, Keys.from_seed(0)
    expected = [agent.member_mask(ENVS, keys.mask_key(row)) for row in range(STEPS // ENVS)]
    for found in masks:
        np.testing.assert_array_equal(found.reshape(-1, ENVS, HEADS), expected)
    assert 0.42 < np.mean(masks[0]) < 0.58
    assert len(np.unique(masks[0].reshape(-1, ENVS * HEADS), axis=0)) > 30
