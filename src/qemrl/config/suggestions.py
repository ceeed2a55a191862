"""What is meant where a name is unknown."""

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most likely meant, if one is nearer than the cutoff, from 0 to 1.

    Dotted names are compared as a whole and by their ends: `learning_rate` is `optimizer.learning_rate`.
    """

    def likeness(known: str) -> float:
        pairs = ((name, known), (name.rpartition(".")[2], known.rpartition(".")[2]))
        return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    best = max(sorted(names), key=likeness, default=None)
    return best if best is not None and likeness(best) >= cutoff else None


def suggestion(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about an unknown name: the nearest known one; else `otherwise`, or all of them."""
    known = sorted(names)
    near = nearest(name, known)
    if near is not None:
        return f"did you mean {near!r}?"
    return otherwise or (f"known: {', '.join(known)}" if known else "there are none to choose from")
