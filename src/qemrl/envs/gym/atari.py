"""Atari games under a named protocol.

Results on Atari depend on what happens around the game: sticky actions, no-ops, lives. A protocol names all of it and
is stored with a run. Reward clipping belongs to the learner; the environment gives the rewards of the game.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from types import MappingProxyType
from typing import Any, Literal

import gymnasium
import numpy as np
from jaxtyping import Int, Shaped, UInt8

from qemrl.envs.gym.catalog import find_environment, import_ale, is_atari

LifeLoss = Literal["ignored", "zero_discount", "new_episode"]


@dataclass(frozen=True)
class AtariProtocol:
    """What happens around an Atari game."""

    name: str
    """What the protocol is called in tables and run records."""

    sticky_actions: float = 0.0
    """The chance, at each frame, that the game sees the action of the frame before instead of the chosen one."""

    frame_skip: int = 4
    """How many frames an action lasts; the observation is the maximum over the last two."""

    noop_max: int = 30
    """An episode begins with one to this many frames without action; 0 for none."""

    life_loss: LifeLoss = "ignored"
    """What losing a life means in training: nothing, a zero discount while the game goes on, or a new episode (a step
    without action, FIRE where `fire_reset` says so, and a new frame stack, without a reset of the game)."""

    fire_reset: bool = False
    """Whether FIRE and then the third action are pressed at the start, in games that have FIRE."""

    screen: int = 84
    """Height and width of a frame."""

    grayscale: bool = True
    """Whether frames are gray; otherwise they have a last axis of three colors."""

    stack: int = 4
    """How many frames an observation stacks, the newest last; an episode begins with copies of its first frame."""

    full_action_space: bool = False
    """Whether all 18 actions are offered in every game."""

    max_frames: int = 108_000
    """The number of frames after which an episode is truncated."""

    def __post_init__(self) -> None:
        if not 0 <= self.sticky_actions <= 1:
            raise ValueError(f"sticky_actions is a probability, got {self.sticky_actions}")
        for field, least in (("frame_skip", 1), ("noop_max", 0), ("screen", 1), ("stack", 1), ("max_frames", 1)):
            if getattr(self, field) < least:
                raise ValueError(f"{field} must be at least {least}, got {getattr(self, field)}")
        if self.life_loss not in ("ignored", "zero_discount", "new_episode"):
            raise ValueError(f"life_loss is ignored, zero_discount or new_episode, got {self.life_loss!r}")

    def for_evaluation(self) -> "AtariProtocol":
        """The same protocol, in which only the end of the game ends an episode."""
        return replace(self, life_loss="ignored")


ATARI_PROTOCOLS: Mapping[str, AtariProtocol] = MappingProxyType(
    {
        protocol.name: protocol
        for protocol in (
            AtariProtocol("paper", life_loss="zero_discount"),
            AtariProtocol("release", life_loss="new_episode", fire_reset=True),
            AtariProtocol("sb3", life_loss="new_episode", fire_reset=True),
            AtariProtocol("dopamine", sticky_actions=0.25, noop_max=0),
            AtariProtocol("machado", sticky_actions=0.25, noop_max=0),
        )
    }
)
"""By name: the papers' (DQN Zoo's), the released code of QEM and of the agents it builds on, Stable-Baselines3's,
Dopamine's, and what `ALE/...-v5` says by itself, after Machado et al. (2018)."""


def protocol_for(env_id: str, name: str | None = None) -> AtariProtocol:
    """The protocol of this name, or the one that an id stands for, if the id allows it.

    `ALE/...-v5` and `...NoFrameskip-v0` have sticky actions, `...NoFrameskip-v4` does not; a protocol that says
    otherwise is an error, as is an id that skips a random number of frames.
    """
    sticky = _registered_stickiness(env_id)
    if name is None:
        return ATARI_PROTOCOLS["machado" if sticky else "paper"]
    if name not in ATARI_PROTOCOLS:
        raise ValueError(f"unknown Atari protocol {name!r}; there are {', '.join(ATARI_PROTOCOLS)}")
    _check_agreement(env_id, ATARI_PROTOCOLS[name], sticky)
    return ATARI_PROTOCOLS[name]


def make_atari(
    env_id: str,
    protocol: AtariProtocol | None = None,
    render: bool = False,
    kwargs: Mapping[str, Any] = MappingProxyType({}),
) -> "AtariGame":
    """An Atari game under a protocol, by default the one that the id stands for.

    Args:
        env_id: `ALE/...-v5` or `...NoFrameskip-v4` (or v0).
        protocol: What happens around the game; it must agree with the id on sticky actions.
        render: Whether `render` gives the screen in color.
        kwargs: The game's own switches, `mode` and `difficulty`.
    """
    others = sorted(set(kwargs) - {"mode", "difficulty"})
    if others:
        raise ValueError(
            f"{env_id} takes mode and difficulty; {', '.join(others)} is a matter of the protocol (--protocol.NAME)"
        )
    sticky = _registered_stickiness(env_id)
    protocol = protocol_for(env_id) if protocol is None else protocol
    _check_agreement(env_id, protocol, sticky)
    return AtariGame(env_id, protocol, render, kwargs)


class AtariGame(gymnasium.Env[np.ndarray, np.int64]):
    """An Atari game under a protocol, with observations [stack, screen, screen] of uint8.

    The seed of a reset and the actions determine an episode, whatever was played before: sticky actions are drawn here
    (as ALE draws them) because ALE can be seeded only by loading the game again, which takes 90 ms against 4 ms, and
    the state of the console is put back because `reset_game` alone leaves traces of the last episode in some games.

    A lost life shows as `info["life_lost"]`; where it begins a new episode, `info["restart_observation"]` is what to
    act on next. Neither is `terminated`, for the game goes on without a reset. Rewards of the frames before an
    episode's first observation (no-ops, FIRE) are not given to anybody.
    """

    def __init__(self, env_id: str, protocol: AtariProtocol, render: bool, kwargs: Mapping[str, Any]):
        self.protocol = protocol
        self.render_mode = "rgb_array" if render else None
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": max(1, 60 // protocol.frame_skip)}
        action = import_ale(env_id).Action
        game = gymnasium.make(
            env_id,
            **kwargs,
            frameskip=1,  # skipped here, and not twice
            repeat_action_probability=0.0,
            max_num_frames_per_episode=protocol.max_frames,
            disable_env_checker=True,
        )
        self.ale: Any = game.unwrapped.ale  # pyright: ignore[reportAttributeAccessIssue]
        self.spec = game.spec
        full = protocol.full_action_space
        self._actions = list(self.ale.getLegalActionSet() if full else self.ale.getMinimalActionSet())
        self._noop, self._fire = action.NOOP, action.FIRE
        self._power_on = self.ale.cloneState()
        height, width = self.ale.getScreenDims()
        colors = () if protocol.grayscale else (3,)
        self._look = self.ale.getScreenGrayscale if protocol.grayscale else self.ale.getScreenRGB
        self._screen, self._screen_before = np.zeros((2, height, width, *colors), np.uint8)
        self._resize = AreaResize(height, width, protocol.screen)
        shape = (protocol.stack, protocol.screen, protocol.screen, *colors)
        self._frames = np.zeros(shape, np.uint8)
        self._held, self._lives = self._noop, 0
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """The first observation of a new game."""
        super().reset(seed=seed, options=options)
        self._start_game()
        if self.protocol.noop_max:
            for _ in range(self.np_random.integers(1, self.protocol.noop_max + 1)):
                self._advance(self._noop, 1)
                if self.ale.game_over():
                    self._start_game()
        if not self._press_fire():
            self._start_game()
        self._lives = self.ale.lives()
        return self._fill_stack(), {}

    def step(self, action: np.int64 | int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """What follows an action, with the reward of the game and what became of its lives."""
        reward = self._advance(self._actions[action], self.protocol.frame_skip)
        frames = np.empty_like(self._frames)
        frames[:-1] = self._frames[1:]
        frames[-1] = self._resize(self._screen)
        self._frames = frames
        terminated, truncated = self.ale.game_over(with_truncation=False), self.ale.game_truncated()
        lives_before, self._lives = self._lives, self.ale.lives()
        info: dict[str, Any] = {}
        if self._lives < lives_before and not terminated:
            if self.protocol.life_loss == "zero_discount":
                info["life_lost"] = True
            # some games go on for a moment without a life left; that is not an episode
            elif self.protocol.life_loss == "new_episode" and self._lives > 0 and not truncated:
                self._advance(self._noop, self.protocol.frame_skip)
                if self.ale.game_over() or not self._press_fire():
                    terminated = True
                else:
                    self._lives = self.ale.lives()
                    info = {"life_lost": True, "restart_observation": self._fill_stack()}
        return frames, reward, terminated, truncated, info

    def render(self) -> UInt8[np.ndarray, "height width 3"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The screen in color."""
        if self.render_mode is None:
            raise ValueError("this game was made without render=True")
        return self.ale.getScreenRGB()

    def _start_game(self) -> None:
        self.ale.restoreState(self._power_on)
        self.ale.reset_game()
        self._held = self._noop
        self._look(self._screen)

    def _advance(self, action: Any, frames: int) -> float:
        """The reward of playing frames; the screen becomes the maximum over the last two, where there were two."""
        ale, sticky = self.ale, self.protocol.sticky_actions
        draws = self.np_random.random(frames).tolist() if sticky else [1.0] * frames
        reward, pooled = 0.0, False
        for frame, draw in enumerate(draws):
            if frame and frame == frames - 1:
                self._look(self._screen_before)
                pooled = True
            if draw >= sticky:
                self._held = action
            reward += ale.act(self._held, 1.0)
            if ale.game_over():
                break
        self._look(self._screen)
        if pooled:
            np.maximum(self._screen, self._screen_before, out=self._screen)
        return reward

    def _press_fire(self) -> bool:
        """Whether the game is still on after FIRE and the third action, where the protocol presses them."""
        if not self.protocol.fire_reset or self._fire not in self._actions or len(self._actions) < 3:
            return True
        for action in (self._fire, self._actions[2]):
            self._advance(action, self.protocol.frame_skip)
            if self.ale.game_over():
                return False
        return True

    def _fill_stack(self) -> UInt8[np.ndarray, "..."]:
        """A stack of copies of the frame on the screen."""
        frames = np.empty_like(self._frames)
        frames[:] = self._resize(self._screen)
        self._frames = frames
        return frames


class AreaResize:
    """Frames resized by exact area averages, rounded to the nearest (halves up).

    All is done in integers, so that no processor rounds otherwise, and without a matrix product: on two busy cores the
    threads of the BLAS library made it 40 times slower.
    """

    def __init__(self, height: int, width: int, size: int):
        rows, columns = _compute_overlaps(height, size), _compute_overlaps(width, size)
        area = int(rows[0].sum() * columns[0].sum())
        dtype = np.uint16 if 255 * area + area // 2 < 2**16 else np.uint32
        self._rows, self._columns = _list_taps(rows, dtype), _list_taps(columns, dtype)
        self._area, self._half, self._dtype = dtype(area), dtype(area // 2), dtype

    def __call__(self, frame: UInt8[np.ndarray, "height width *colors"]) -> UInt8[np.ndarray, "size size *colors"]:
        """The frame in the new size."""
        tall = _sum_weighted(frame.astype(self._dtype), self._rows)
        total = _sum_weighted(np.ascontiguousarray(tall.swapaxes(0, 1)), self._columns)
        total += self._half
        total //= self._area
        return total.swapaxes(0, 1).astype(np.uint8)


def _compute_overlaps(length: int, size: int) -> Int[np.ndarray, "size length"]:
    """How much of each old cell each new cell covers, in the largest unit in which all of it is whole."""
    unit = gcd(length, size)
    old, new = length // unit, size // unit
    begin, cell = np.arange(size)[:, None] * old, np.arange(length)[None, :] * new
    return np.maximum(0, np.minimum(begin + old, cell + new) - np.maximum(begin, cell))


def _list_taps(overlaps: Int[np.ndarray, "size length"], dtype: type) -> list[tuple[np.ndarray, np.ndarray]]:
    """The overlaps as lists of (old cell, weight) for all new cells: the first old cell of each, the second, ..."""
    first = (overlaps > 0).argmax(1)
    taps = []
    for offset in range(int((overlaps > 0).sum(1).max())):
        index = np.minimum(first + offset, overlaps.shape[1] - 1)
        weight = np.where(first + offset < overlaps.shape[1], overlaps[np.arange(len(first)), index], 0)
        taps.append((index, weight.astype(dtype)))
    return taps


def _sum_weighted(cells: Shaped[np.ndarray, "length ..."], taps: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Weighted sums along the first axis."""
    shape = (-1,) + (1,) * (cells.ndim - 1)
    total = cells[taps[0][0]] * taps[0][1].reshape(shape)
    for index, weight in taps[1:]:
        total += cells[index] * weight.reshape(shape)
    return total


def _registered_stickiness(env_id: str) -> float:
    if not is_atari(env_id):
        raise ValueError(f"{env_id} is no Atari game; an Atari protocol says nothing about it")
    settings = find_environment(env_id).kwargs
    if not isinstance(settings["frameskip"], int):
        game = env_id.partition("-")[0]
        raise ValueError(
            f"{env_id} skips a random number of frames, which no protocol does; "
            f"take {game}NoFrameskip-v4 or ALE/{game}-v5"
        )
    return float(settings["repeat_action_probability"])


def _check_agreement(env_id: str, protocol: AtariProtocol, sticky: float) -> None:
    if protocol.sticky_actions != sticky:
        fitting = [known.name for known in ATARI_PROTOCOLS.values() if known.sticky_actions == sticky]
        raise ValueError(
            f"{env_id} means sticky actions with probability {sticky}, but the protocol {protocol.name!r} says "
            f"{protocol.sticky_actions}; ALE/...-v5 has 0.25, ...NoFrameskip-v4 has none "
            f"(protocols for this id: {', '.join(fitting)})"
        )
