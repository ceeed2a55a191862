"""HTML that is safe by construction, as text is escaped where it enters an element; and numbers as readers see them."""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from qemrl.experiments.statistics import Interval

NOTHING = "–"
"""Stands where there is no number, or where an algorithm does not have a setting."""

VOID = ("meta", "link", "path", "circle")
"""Elements without content."""


class Html(NamedTuple):
    """Markup, as `element` makes it."""

    text: str


Piece = str | Html
"""Text, which is escaped, or markup, which is not."""

Attributes = Mapping[str, str | None]
"""Values by name; one without a value is None."""


def element(tag: str, attributes: Attributes, *children: Piece) -> Html:
    """An element; children that are text are escaped, and so are the values of attributes."""
    parts = [name if value is None else f'{name}="{html.escape(value)}"' for name, value in attributes.items()]
    opening = " ".join((tag, *parts))
    # The slash matters only inside SVG, where an element would stay open without it.
    return Html(f"<{opening}/>" if tag in VOID else f"<{opening}>{join(*children).text}</{tag}>")


def join(*pieces: Piece) -> Html:
    """Pieces one after another."""
    return Html("".join(piece.text if isinstance(piece, Html) else html.escape(piece) for piece in pieces))


def paragraph(*pieces: Piece) -> Html:
    """A paragraph."""
    return element("p", {}, *pieces)


def bullet_list(items: Iterable[Piece]) -> Html:
    """A list with bullets."""
    return element("ul", {}, *(element("li", {}, item) for item in items))


def fold(summary: Piece, *pieces: Piece) -> Html:
    """What readers unfold by a click."""
    return element("details", {}, element("summary", {}, summary), *pieces)


def button(kind: str, pressed: bool = True) -> dict[str, str | None]:
    """The attributes of a button that stays pressed."""
    return {"type": "button", "class": kind, "aria-pressed": "true" if pressed else "false"}


def table(caption: str, head: Sequence[Piece], rows: Iterable[Sequence[Piece]], kind: str = "") -> Html:
    """A table in a box of its own that scrolls; the first cell of a row is its heading.

    Args:
        caption: Says what it shows.
        head: The headings of columns.
        rows: The cells; one that is an element `td` already is taken as it is.
        kind: A class of the style sheet.
    """
    top = element("thead", {}, element("tr", {}, *(element("th", {"scope": "col"}, cell) for cell in head)))
    body = []
    for first, *others in rows:
        cells = [
            cell if isinstance(cell, Html) and cell.text.startswith("<td") else element("td", {}, cell)
            for cell in others
        ]
        body.append(element("tr", {}, element("th", {"scope": "row"}, first), *cells))
    inner = element(
        "table", {"class": kind} if kind else {}, element("caption", {}, caption), top, element("tbody", {}, *body)
    )
    # A box that scrolls must be reachable by the keyboard.
    return element("div", {"class": "box", "tabindex": "0", "role": "region", "aria-label": caption}, inner)


def dump_script(data: Any) -> str:
    """JSON for a script element: nothing in it can end the element or begin another, whatever texts it holds."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def format_number(value: float, scale: float | None = None) -> str:
    """A number with about three digits of what is as large as `scale`, by default of its own size."""
    return f"{value:{_choose_digits(value if scale is None else scale)}}".replace("-", "−")


def format_ends(interval: Interval, scale: float) -> str:
    """The ends of an interval in brackets, with as many digits; nothing if there are none."""
    return interval.format_ends(_choose_digits(scale)).replace("-", "−")


def _choose_digits(scale: float) -> str:
    size = abs(scale)
    return f"z,.{0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3}f"


def format_duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds >= 3600:
        return f"{seconds / 3600:,.1f} hours"
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.1f} seconds"
