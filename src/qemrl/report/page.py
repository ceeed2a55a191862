"""The page: one HTML file that needs no server, no network and no other file.

A policy in its head forbids everything but its own style and script, which are known by their hashes, so that even
markup that got past the escaping could neither run nor load anything.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping
from importlib import resources

from qemrl.plotting.style import LineStyle
from qemrl.report import details, sections
from qemrl.report.charts import PageBuilder, dark_color, svg_dash
from qemrl.report.content import Content
from qemrl.report.markup import Html, dump_script, element, join

SECTIONS: Mapping[str, tuple[str, Callable[[PageBuilder], Html | None]]] = {
    "overview": ("Overview", details.overview),
    "curves": ("Learning curves", sections.learning_curves),
    "final": ("Final scores", sections.final_scores),
    "aggregates": ("Over all tasks", sections.aggregates),
    "profiles": ("Performance profiles", sections.profiles),
    "improvement": ("Probability of improvement", sections.improvement),
    "efficiency": ("Sample efficiency", sections.efficiency),
    "throughput": ("Throughput", details.throughput),
    "settings": ("Settings", details.settings),
    "distributions": ("Return distributions", details.distributions),
    "ledger": ("The paper's ledger", details.ledger),
}
"""The title and the maker of each section, in the order of the page; one that has nothing to show is left out."""


def make_page(content: Content) -> str:
    """The page as HTML; the same content gives the same page."""
    builder = PageBuilder(content)
    bodies = {name: body for name, (_, make) in SECTIONS.items() if (body := make(builder)) is not None}
    links = [element("li", {}, element("a", {"href": f"#{name}"}, SECTIONS[name][0])) for name in bodies]
    title = f"Report: {content.collection.folder.resolve().name}"
    parts = [
        element("h1", {}, title),
        element("p", {"class": "from"}, "Made by qemrl report. Runs are listed under Overview."),
        element("nav", {"aria-label": "Sections"}, element("ul", {}, *links)),
        element("noscript", {}, element("p", {}, "The charts need JavaScript; all tables are there without it.")),
    ]
    for name, body in bodies.items():
        heading = element("h2", {"id": f"{name}-title"}, SECTIONS[name][0])
        parts.append(element("section", {"id": name, "aria-labelledby": f"{name}-title"}, heading, body))
    sheet = _read_own("page.css") + _color_rules(list(builder.styles.values()))
    script = _read_own("page.js")
    head = [
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": _policy(sheet, script)}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "referrer", "content": "no-referrer"}),
        element("title", {}, title),
        element("link", {"rel": "icon", "href": "data:,"}),
        element("style", {}, Html(sheet)),
    ]
    arms = [{"name": arm, "dash": svg_dash(style)} for arm, style in builder.styles.items()]
    data = Html(dump_script({"arms": arms, "charts": builder.charts}))
    scripts = [element("script", {"type": "application/json", "id": "data"}, data), element("script", {}, Html(script))]
    body = element("body", {}, element("main", {}, *parts), *scripts)
    whole = element("html", {"lang": "en"}, element("head", {}, *head), body)
    text = join(Html("<!doctype html>\n"), whole, Html("\n")).text
    return text.encode(errors="backslashreplace").decode()  # names of folders need not be Unicode


def _read_own(name: str) -> str:
    """A file of this package."""
    return (resources.files("qemrl.report") / name).read_text(encoding="utf-8")


def _color_rules(styles: list[LineStyle]) -> str:
    """The color of each algorithm, and the shades of probabilities from 0 to 1."""
    light = "".join(f".arm-{place}{{--arm:{style.color}}}\n" for place, style in enumerate(styles))
    dark = "".join(f".arm-{place}{{--arm:{dark_color(style)}}}\n" for place, style in enumerate(styles))
    shades = ""
    for place in range(11):
        side = "--warm" if place < 5 else "--cool"
        shades += f".heat-{place}{{background:rgba(var({side}),{abs(place - 5) * 0.09:.2f})}}\n"
    return f"{light}{shades}@media screen and (prefers-color-scheme: dark){{\n{dark}}}\n"


def _policy(style: str, script: str) -> str:
    def hash_source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    rules = {
        "default-src": "'none'",
        "script-src": hash_source(script),
        "style-src": hash_source(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())
