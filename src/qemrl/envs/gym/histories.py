"""The seeds and actions of the episodes that environments are in, from which deterministic ones can be restored."""

from array import array
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from qemrl.types import Actions, EnvSpec


class Histories:
    """The actions of the running episode in each environment, exactly as they were taken."""

    def __init__(self, spec: EnvSpec, num_envs: int):
        self._shape = spec.action_shape
        self._stored = "uint32" if spec.box is None else "float32"
        numbers = "H" if spec.num_actions <= 2**16 else "L"
        self._type = "f" if spec.box is not None else numbers
        self._actions = [array(self._type) for _ in range(num_envs)]

    def forget(self, place: int) -> None:
        """Start a new episode in one environment."""
        self._actions[place] = array(self._type)

    def add(self, actions: Actions) -> None:
        """Note the actions of a step."""
        if self._type == "f":
            for history, action in zip(self._actions, actions, strict=True):
                history.frombytes(action.tobytes())
        else:
            for history, action in zip(self._actions, actions.tolist(), strict=True):
                history.append(action)

    def state(self) -> dict[str, np.ndarray]:
        """The number of actions of each environment, and all actions one environment after another."""
        episodes = [np.asarray(history, self._stored).reshape(-1, *self._shape) for history in self._actions]
        return {
            "length": np.array([len(episode) for episode in episodes], np.int64),
            "actions": np.concatenate(episodes),
        }

    def read(self, state: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The actions of each environment in a state, which must be one of environments with such actions."""
        actions = state["actions"]
        if actions.shape[1:] != self._shape or actions.dtype != self._stored:
            raise ValueError(
                f"the stored actions are {actions.dtype}{list(actions.shape[1:])}, those of the environments here "
                f"{self._stored}{list(self._shape)}; make environments of the same kind"
            )
        return np.split(actions, np.cumsum(state["length"])[:-1])

    def load(self, episodes: Sequence[np.ndarray]) -> None:
        """Take these actions for those of the running episodes."""
        for place, episode in enumerate(episodes):
            self.forget(place)
            self._actions[place].frombytes(episode.astype(self._type).tobytes())


def episode_seed(seed: int, place: int, episode: int) -> int:
    """The seed of an episode of an environment in a run, of 31 bits."""
    return int(np.random.SeedSequence(seed, spawn_key=(place, episode)).generate_state(1)[0] >> 1)


def schedule_replay(episodes: Sequence[np.ndarray]) -> Iterator[tuple[Bool[np.ndarray, " envs"], Actions]]:
    """How to play episodes again side by side so that all end at once: where one begins anew, and the actions.

    All environments step at once, so those with fewer actions would be done too early: they first play a part of
    theirs, then all in rounds (actions that they are known to take), so that the last round ends with all. Those
    without any begin anew all the time, and their actions are zero.
    """
    total = max(len(episode) for episode in episodes)
    for time in range(total):
        restarts = np.ones(len(episodes), np.bool_)
        actions = np.zeros((len(episodes), *episodes[0].shape[1:]), episodes[0].dtype)
        for place, episode in enumerate(episodes):
            if len(episode):
                part = total % len(episode)
                at = time if time < part else (time - part) % len(episode)
                restarts[place], actions[place] = at == 0, episode[at]
        yield restarts, actions
