"""Running items of the paper, keeping what they give, and the ledger of all claims."""

import csv
import dataclasses
import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import qemrl
from qemrl.experiments.statistics import Interval
from qemrl.paper.claims import Item, Result, Scale, Tick, interval_columns
from qemrl.plotting import style as figures
from qemrl.training.machine import code_commit


def run_item(item: Item, scale: Scale, seed: int, folder: Path, tick: Tick) -> Path:
    """Run an item and write its data, figure and claims; the folder of the item is returned.

    Nothing is there before everything is: an interrupted run leaves what an earlier one wrote.
    """
    started = time.perf_counter()
    result = item.run(scale, seed, tick)
    seconds = time.perf_counter() - started
    partial, final = folder / f".{item.name}.partial", folder / item.name
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_rows(result.rows, partial / "data.csv")
    figures.save(result.figure, partial, "figure")
    report = _report(item, scale, seed, seconds, result)
    (partial / "claims.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    return final


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows, all with the same keys, as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _report(item: Item, scale: Scale, seed: int, seconds: float, result: Result) -> dict[str, Any]:
    claims = [dataclasses.asdict(claim) | {"measured": interval_columns(claim.measured)} for claim in result.claims]
    return {
        "item": item.name,
        "where": item.where,
        "summary": item.summary,
        "scale": scale,
        "seed": seed,
        "version": qemrl.__version__,
        "commit": code_commit(),
        "seconds": round(seconds, 1),
        "notes": result.notes,
        "claims": claims,
    }


def read_report(folder: Path, name: str) -> dict[str, Any] | None:
    """What an item that was run gave, or None."""
    path = folder / name / "claims.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def is_done(folder: Path, item: Item, scale: Scale, seed: int) -> bool:
    """True if the item's results for this scale, seed and version of the library are there."""
    report = read_report(folder, item.name)
    wanted = {"scale": scale, "seed": seed, "version": qemrl.__version__}
    return report is not None and all(report[key] == value for key, value in wanted.items())


def ledger(folder: Path, items: Iterable[Item]) -> str:
    """A Markdown table of every claim whose item was run, in the order of `items`."""
    lines = [
        "| item | claim | where | what is claimed | measured (95% interval) | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for item in items:
        report = read_report(folder, item.name)
        for claim in report["claims"] if report else []:
            number = f"{Interval(**claim['measured'])}: {claim['meaning']}"
            cells = (item.name, claim["name"], claim["where"], claim["statement"], number)
            escaped = " | ".join(cell.replace("|", "\\|") for cell in cells)
            lines.append(f"| {escaped} | **{claim['verdict']}** |")
    return "\n".join(lines) + "\n"
