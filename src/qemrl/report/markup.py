"""HTML that is safe by construction: text is escaped wherever it enters an element."""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
    # The slash matters inside of SVG only, where an element would stay open without it.
    return Html(f"<{opening}/>" if tag in VOID else f"<{opening}>{joined(children).text}</{tag}>")


def joined(pieces: Iterable[Piece]) -> Html:
    """Pieces one after another."""
    return Html("".join(piece.text if isinstance(piece, Html) else html.escape(piece) for piece in pieces))


def paragraph(*pieces: Piece) -> Html:
    """A paragraph."""
    return element("p", {}, *pieces)


def listed(items: Iterable[Piece]) -> Html:
    """A list with bullets."""
    return element("ul", {}, *(element("li", {}, item) for item in items))


def folded(summary: Piece, *pieces: Piece) -> Html:
    """What readers unfold by a click."""
    return element("details", {}, element("summary", {}, summary), *pieces)


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


def as_script(data: Any) -> str:
    """JSON for a script element: nothing in it can end the element or begin another, whatever texts it holds."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
