"""The table of what rules exclude, in docs/fuzzing.md, agrees with the rules."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.sweep.validity import BUILT_IN, invalid

PAGE = Path(__file__).parents[2] / "docs" / "fuzzing.md"
OVERLAPPING = Mesh("dp_shard", roles={"dp_shard": "dp"}, overlaps={"shared": ("dp_shard",)})


def rows() -> list[list[str]]:
    """The cells of each row of the table, below its header."""
    text = PAGE.read_text(encoding="utf-8").partition("| excluded | for example | reason |")[2]
    lines = [line for line in text.partition("\n\n")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def point(words: str) -> Point:
    named = dict(word.split("=") for word in words.strip("`").split())
    values = tuple((a, v == "True" if v in ("True", "False") else int(v)) for a, v in named.items())
    return Point(values, OVERLAPPING) if "shared" in named else Point(values)


def test_each_example_of_the_table_is_excluded_for_the_reason_that_the_table_gives() -> None:
    assert len(rows()) == len(BUILT_IN) + 1
    for _, example, reason in rows():
        assert invalid(point(example), {}, (), 4) == reason


def test_every_built_in_rule_has_an_example_in_the_table() -> None:
    examples = [point(example) for _, example, _ in rows()]

    for rule in BUILT_IN:
        assert any(rule(example, {}) is not None for example in examples), rule
