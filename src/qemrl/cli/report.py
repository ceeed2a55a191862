"""The command that reports on everything below a folder: `report`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional

from qemrl.cli.console import UsageError, print_table, require, show_status, table, usage

if TYPE_CHECKING:
    from qemrl.report.content import Content


def report(
    directory: Positional[Path],
    out: Path,
    figures: Path | None = None,
    pdf: Path | None = None,
    agents: bool = True,
    seed: int = 0,
) -> None:
    """Make one HTML page about all runs below a folder: curves, scores with intervals, settings, saved agents.

    The page needs neither a server nor the network. Runs may be those of `sweep`, `compare` or `train`, finished or
    not; results of `reproduce` below the folder become the paper's ledger. The same runs give the same bytes. What is
    printed is how far each algorithm ends above the one that is nearest to it.

    Args:
        directory: The folder, or a single run directory.
        out: The page, FILE.html; one that is there is replaced.
        figures: A folder for the figures as PNG, SVG and PDF.
        pdf: A file for all figures as one PDF.
        agents: Load one saved agent of each algorithm and task, and show the return distributions that it predicts;
            this takes some seconds for each.
        seed: The seed of the bootstrap.
    """
    require(out.suffix in (".html", ".htm"), f"--out must be a file that ends in .html; got {out}")
    require(not out.is_dir(), f"--out must be a file, and {out} is a folder")
    require(figures is None or not figures.exists() or figures.is_dir(), f"--figures must be a folder; got {figures}")
    require(
        pdf is None or (pdf.suffix == ".pdf" and not pdf.is_dir()), f"--pdf must be a file that ends in .pdf; got {pdf}"
    )
    require(seed >= 0, f"--seed must not be negative; got {seed}")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # environments of saved agents are made without a window
    from qemrl.report.content import gather
    from qemrl.report.figures import write_figures, write_pdf
    from qemrl.report.page import make_page
    from qemrl.training.run_directory import write_atomic

    with show_status("reading runs") as status, usage():
        content = gather(directory, agents, seed, lambda what: status.update(f"{what} …"))
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(out, make_page(content))
            paths = [out]
            if figures is not None:
                paths += write_figures(content, figures)
            if pdf is not None:
                write_pdf(content, pdf)
                paths.append(pdf)
        except OSError as error:
            raise UsageError(f"{error}; choose another place with --out, --figures and --pdf") from error
    for each in content.collection.unreadable:
        print(f"note: {each.name} is left out: {each.reason}")
    if content.results.differences:
        print_table(differences_table(content))
    for path in paths:
        print(f"wrote {path}")


def differences_table(content: "Content") -> Table:
    """How far algorithms end above those before them that are nearest in settings, by task if there are few."""
    from qemrl.report.markup import format_ends, format_number

    results = content.results
    title = "Last evaluations minus those of the nearest algorithm, paired by seed"
    shown = table(title, "algorithm", "minus", "task", ">pairs", ">difference", "95% interval", "")
    for env in (*content.few_envs, None):
        for arm, (interval, pairs) in results.gains(content.nearest, env).items():
            against = content.nearest[arm]
            scale = 1.0 if env is None else max(abs(results.final[one, env].value) for one in (arm, against))
            names = (arm, against, "all, normalized" if env is None else env)
            words = interval.verdict if interval.excludes(0.0) else ""
            rest = (str(pairs), format_number(interval.value, scale), format_ends(interval, scale), words)
            shown.add_row(*map(escape, (*names, *rest)))
        shown.add_section()
    return shown
