"""What is meant where a name is unknown."""

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that is most likely meant, if one is near; for a dotted name first one with the same end.

    `learning_rate` is `optimizer.learning_rate`, and so is `network.learning_rat`. `cutoff` says how near, from 0 to 1.
    """
    known = sorted(names)
    by_end = {each.rpartition(".")[2]: each for each in reversed(known)}
    end = name.rpartition(".")[2]
    if end in by_end:
        return by_end[end]
    close = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    close_end = difflib.get_close_matches(end, by_end, n=1, cutoff=max(cutoff, 0.6))
    return close[0] if close else by_end[close_end[0]] if close_end else None


def suggestion(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about an unknown name: the nearest known one; else `otherwise`, or all of them."""
    known = sorted(names)
    near = nearest(name, known)
    if near is not None:
        return f"did you mean {near!r}?"
    return otherwise or (f"known: {', '.join(known)}" if known else "there are none to choose from")
