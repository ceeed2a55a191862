"""Host loops of several seeds on several cores, in threads: compiled programs release Python's lock to the others."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np

from qemrl.agents.agent import InspectableAgent
from qemrl.training.host_loop import HostLoop
from qemrl.training.machine import available_cores
from qemrl.training.schedule import Record, Stop, never

PATIENCE = 0.1
"""How many seconds may go by before a request to stop is noticed."""


def run_threads(works: Sequence[Callable[[Stop], None]], stop: Stop) -> None:
    """Run all works, each of which is handed a function that says whether to stop early.

    `stop` itself is only called in this thread. Where a work fails, the others stop, too; then its error is raised.
    """
    if len(works) <= 1:
        for work in works:
            work(stop)
        return
    halted = threading.Event()

    def guarded(work: Callable[[Stop], None]) -> None:
        try:
            work(halted.is_set)
        except BaseException:
            halted.set()
            raise

    with ThreadPoolExecutor(min(len(works), available_cores())) as pool:
        futures = [pool.submit(guarded, work) for work in works]
        try:
            while wait(futures, PATIENCE).not_done:
                if stop():
                    halted.set()
        finally:
            halted.set()
    for future in futures:
        future.result()


class HostLoops:
    """Host loops of several seeds, side by side from record to record, as many at once as there are cores.

    A seed gains little from a second core, because its matrix products are small; two seeds gain all of it. Which seed
    is ahead changes nothing in what they learn.
    """

    def __init__(self, loops: list[HostLoop]) -> None:
        self.loops = loops
        self.records: list[Record | None] = [None] * len(loops)
        """The records of seeds that are ahead of the others; kept until all have come as far."""

    @property
    def step(self) -> int:
        """How many steps every seed has done."""
        return min(loop.step for loop in self.loops)

    @property
    def mean_step(self) -> float:
        """How many steps the seeds have done on average."""
        return sum(loop.step for loop in self.loops) / len(self.loops)

    @property
    def agent(self) -> InspectableAgent:
        """The agent that all seeds are runs of."""
        return self.loops[0].agent

    def advance(self, until: int, evaluate: bool, stop: Stop = never, keep_sums: bool = False) -> list[Record] | None:
        """Run to `until` steps and give a record for each seed, or None if `stop` asked to stop before."""
        if stop():  # threads that are done before they are polled do not ask
            return None
        behind = [index for index, record in enumerate(self.records) if record is None]
        run_threads([partial(self._advance, index, until, evaluate, keep_sums=keep_sums) for index in behind], stop)
        records = [record for record in self.records if record is not None]
        if len(records) < len(self.loops):
            return None
        self.records = [None for _ in self.loops]
        return records

    def _advance(self, index: int, until: int, evaluate: bool, stop: Stop, keep_sums: bool = False) -> None:
        self.records[index] = self.loops[index].advance(until, evaluate, stop, keep_sums)

    def set_evaluation_episodes(self, episodes: int) -> None:
        """Play so many episodes in evaluations from now on."""
        for loop in self.loops:
            loop.set_evaluation_episodes(episodes)

    def arrays(self) -> dict[str, np.ndarray]:
        """All that changes."""
        loops = enumerate(self.loops)
        return {f"{index}/{name}": array for index, loop in loops for name, array in loop.arrays().items()}

    def param_arrays(self) -> dict[str, np.ndarray]:
        """The parameters alone, under the names that `arrays` gives them."""
        loops = enumerate(self.loops)
        return {f"{index}/{name}": array for index, loop in loops for name, array in loop.param_arrays().items()}

    def meta(self) -> dict[str, Any]:
        """The records of seeds that are ahead, as pairs: checkpoints keep no order of keys, and metrics.jsonl does."""
        return {"records": [None if record is None else list(record.items()) for record in self.records]}

    def restore(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> list[str]:
        """Go on from there; returns a message for everything that could not be restored."""
        del step
        lost = []
        for index, loop in enumerate(self.loops):
            start = f"{index}/"
            lost += loop.restore({name.removeprefix(start): a for name, a in arrays.items() if name.startswith(start)})
        self.records = [None if pairs is None else dict(pairs) for pairs in meta["records"]]
        return lost

    def params(self, index: int) -> Any:
        """The parameters of one of the seeds."""
        return self.loops[index].agent_state.params

    @property
    def replay_bytes(self) -> int:
        """The memory that the replay of all seeds takes."""
        return sum(loop.replay.nbytes for loop in self.loops)

    def close(self) -> None:
        """Close all environments."""
        for loop in self.loops:
            loop.close()
