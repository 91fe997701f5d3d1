"""The example of docs/refine.md passes, and its page shows the report of its fault."""

import importlib
from pathlib import Path

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_refines

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs/examples/refine"
PAGE = (ROOT / "docs/refine.md").read_text(encoding="utf-8")


def test_the_example_passes(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    example = importlib.import_module("refine.test_refine")
    example.test_the_mlp_of_two_ranks_refines_the_sequential_one()
    captured = importlib.import_module("refine.test_captured")
    captured.test_the_captured_mlp_of_two_ranks_refines_the_sequential_one()


def test_the_page_shows_the_files_and_the_report_of_the_fault():
    rank = EXAMPLE / "unreduced.fx.txt"
    with pytest.raises(TrainsafeFailure) as raised:
        assert_refines(EXAMPLE / "sequential.fx.txt", [rank, rank], EXAMPLE / "relation.yaml")
    assert str(raised.value) in PAGE
    assert (EXAMPLE / "relation.yaml").read_text(encoding="utf-8") in PAGE
    for name in ("test_refine.py", "test_captured.py"):
        code = (EXAMPLE / name).read_text(encoding="utf-8")
        assert code.partition('"""\n\n')[2] in PAGE
