"""Works side by side in threads, and host loops of several seeds, which use them."""

import json
import threading
import time
from dataclasses import replace

import jax
import numpy as np
import pytest

from qemrl.agents.value import NetworkConfig
from qemrl.training.config import configure
from qemrl.training.loops import make_loop
from qemrl.training.machine import available_cores
from qemrl.training.schedule import Stop, never
from qemrl.training.threads import HostLoops, run_threads


def until(stop: Stop) -> None:
    """Work that only ends when it is told to."""
    deadline = time.monotonic() + 60
    while not stop():
        assert time.monotonic() < deadline, "nobody said stop"
        time.sleep(0.01)


def test_all_works_are_done():
    done = []
    run_threads([lambda _, n=n: done.append(n) for n in range(7)], never)
    assert sorted(done) == list(range(7))


@pytest.mark.skipif(available_cores() < 2, reason="needs two cores")
def test_two_works_run_at_the_same_time():
    meeting = threading.Barrier(2, timeout=60)

    def meet(_: Stop) -> None:
        meeting.wait()  # raises BrokenBarrierError if nobody comes

    run_threads([meet, meet], never)


@pytest.mark.parametrize("works", [1, 3])
def test_works_stop_when_asked_and_the_question_is_put_in_the_calling_thread(works):
    threads = set()

    def stop() -> bool:
        threads.add(threading.current_thread())
        return True

    run_threads([until] * works, stop)
    assert threads == {threading.current_thread()}


def test_a_failure_stops_the_others_and_is_raised():
    def fail(_: Stop) -> None:
        raise FloatingPointError("seed 1 went wrong")

    with pytest.raises(FloatingPointError, match="seed 1 went wrong"):
        run_threads([until, fail, until], never)


def test_an_interrupt_of_the_calling_thread_stops_the_works():
    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_threads([until, until], interrupt)


def run(seed: int, num_seeds: int) -> HostLoops:
    config = configure("qem-dqn", "CartPole-v1", 300, seed, num_seeds)
    agent = replace(config.agent, learning_starts=100, batch_size=8, network=NetworkConfig(widths=(8,)))
    config = replace(config, agent=agent, evaluation_episodes=2)
    loop = make_loop(config)
    assert isinstance(loop, HostLoops)
    return loop


def test_seeds_side_by_side_learn_what_each_learns_alone():
    together, alone = run(3, 2), [run(3, 1), run(4, 1)]
    records = together.advance(300, True, never)
    expected = [loop.advance(300, True, never) for loop in alone]
    assert records is not None
    assert records == [record for each in expected if each is not None for record in each]
    for index, loop in enumerate(alone):
        jax.tree.map(np.testing.assert_array_equal, together.params(index), loop.params(0))


def test_the_record_of_a_seed_that_is_ahead_is_kept_as_it_was():
    """Checkpoints sort the keys of JSON, and metrics.jsonl must not depend on whether a run was stopped."""
    loops = run(3, 2)
    loops._advance(0, 4, False, never)
    stored = json.loads(json.dumps(loops.meta(), sort_keys=True))
    again = run(3, 2)
    again.restore(0, loops.arrays(), stored)
    first, kept = loops.records[0], again.records[0]
    assert first is not None
    assert kept is not None
    assert list(kept.items()) == list(first.items())
    assert list(first) != sorted(first)  # so that a sorted record would have been found out
    assert again.records[1] is None


def test_seeds_that_are_done_at_once_still_hear_that_they_are_to_stop():
    loops = run(3, 2)
    assert loops.advance(4, False, lambda: True) is None
    assert loops.step == 0
