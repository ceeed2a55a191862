"""Work on several cores at once, in threads: compiled programs leave Python's lock to others while they run."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from qemrl.training.machine import available_cores

Stop = Callable[[], bool]

PATIENCE = 0.1
"""How many seconds may go by before a question to stop is heard."""


def run_threads(works: Sequence[Callable[[Stop], None]], stop: Stop) -> None:
    """Do all works, each of which is handed a function that says whether to stop before its end.

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
