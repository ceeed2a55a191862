"""What every item of the catalog owes: plain rows, honest progress, claims that can be read, and no surprises."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import jaxtyping
import numpy as np
import pytest

from qemrl.paper.catalog import ITEMS
from qemrl.paper.claims import Item, Result, Verdict


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_an_item_keeps_the_contract(item: Item):
    shares: list[float] = []
    first = item.run("smoke", 0, shares.append)
    assert shares == sorted(shares)
    assert shares[0] > 0
    assert shares[-1] == pytest.approx(1.0)
    _check_rows(first)
    _check_claims(first)
    with without_shape_checks():
        again = item.run("smoke", 0, lambda _: None)
        other = item.run("smoke", 1, lambda _: None)
    assert again.rows == first.rows
    assert again.claims == first.claims
    assert other.rows != first.rows


@contextmanager
def without_shape_checks() -> Iterator[None]:
    """Types and shapes were checked in the first run; checking them again takes as long as the items themselves."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def _check_rows(result: Result) -> None:
    assert len({tuple(row) for row in result.rows}) == 1
    entries = [entry for row in result.rows for entry in row.values()]
    assert {type(entry) for entry in entries} <= {str, int, float}
    assert all(np.isfinite(entry) for entry in entries if isinstance(entry, float))


def _check_claims(result: Result) -> None:
    assert len({claim.name for claim in result.claims}) == len(result.claims) > 0
    for claim in result.claims:
        assert claim.verdict in get_args(Verdict)
        assert claim.measured.low <= claim.measured.value <= claim.measured.high
        assert all((claim.where, claim.statement, claim.rule, claim.meaning))
