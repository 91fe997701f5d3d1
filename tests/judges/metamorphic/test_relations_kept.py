"""Relations that hold on healthy Runs are written to a file, and asserted in later test runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_kept_relations, relations
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError, RelationError
from pytest_trainsafe.judges.metamorphic.kept import FORMAT, MAX_BYTES, Kept, add_found, read_kept
from pytest_trainsafe.runs.traces import Traces
from tests.support.metamorphic import relation_programs
from tests.support.metamorphic.relation_runs import fixture_of

PROGRAM = "tests.support.metamorphic.relation_programs:train"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The trace fixture of a linear model."""
    return fixture_of(relation_programs.train, tmp_path_factory.mktemp("linear"))


def below(traces: Traces, root: Path, *, learns: bool = False) -> Traces:
    """The trace fixture in a project at `root`, in a test run with or without learning."""
    settings = traces.case.settings._replace(root=str(root), learn="ours" if learns else "")
    return replace(traces, case=replace(traces.case, settings=settings, healthy=learns))


def test_relations_that_hold_on_a_healthy_run_are_written_and_asserted_later(trained, tmp_path):
    class Wrong(relation_programs.Shift):
        name = "wrong"

        def views(self, setting):
            return None, None

    given = [relation_programs.Shift(), Wrong()]
    assert_kept_relations(below(trained, tmp_path, learns=True), "kept.txt", candidates=given)

    lines = (tmp_path / "kept.txt").read_text().splitlines()
    assert lines[3:6] == [
        f"{PROGRAM} | order | holds | a single device",
        f"{PROGRAM} | shift | holds | a single device",
        f"{PROGRAM} | split | holds | a single device",
    ]
    assert lines[6].startswith(f"{PROGRAM} | wrong | does not hold | a single device: ")
    # The program does not recompute, so the relation `recompute` was inconclusive and left out.
    assert len(lines) == 7

    later = below(trained, tmp_path)
    assert_kept_relations(later, "kept.txt", candidates=given)
    note = f"kept.txt says that the relation 'wrong' does not hold for {PROGRAM}, so it was not "
    note += "judged"
    assert note in later.runs.notes


def test_a_program_that_breaks_a_kept_relation_fails(tmp_path):
    (tmp_path / "kept.txt").write_text(f"{FORMAT}\n{PROGRAM} | order | holds | a single device\n")
    noisy = fixture_of(relation_programs.train, tmp_path, {"noise": True})

    with pytest.raises(TrainsafeFailure, match=r"the same under the relation\s+order"):
        assert_kept_relations(below(noisy, tmp_path), "kept.txt")


def test_a_relation_that_failed_once_stays_recorded_as_not_holding(tmp_path):
    file = tmp_path / "kept.txt"
    add_found(
        file, [Kept("m:train", "order", True, "dp=1"), Kept("m:train", "split", True, "dp=1")]
    )
    add_found(file, [Kept("m:train", "order", False, "dp=2: loss")])
    add_found(
        file, [Kept("m:train", "order", True, "dp=4"), Kept("m:train", "split", True, "dp=2")]
    )

    assert read_kept(file) == [
        Kept("m:train", "order", False, "dp=2: loss"),
        Kept("m:train", "split", True, "dp=1; dp=2"),
    ]


def test_a_file_without_a_relation_that_holds_for_the_program_is_refused(trained, tmp_path):
    (tmp_path / "kept.txt").write_text(f"{FORMAT}\nother:train | order | holds | dp=2\n")

    with pytest.raises(
        ArgumentError,
        match=r"no relation that holds for \S+\.relation_programs:train",
    ):
        assert_kept_relations(below(trained, tmp_path), "kept.txt")


def test_a_kept_relation_that_is_neither_declared_nor_a_candidate_is_refused(trained, tmp_path):
    (tmp_path / "kept.txt").write_text(f"{FORMAT}\n{PROGRAM} | padding | holds | dp=2\n")

    unknown = r"lists the relation 'padding'.*known relations: order, reco"
    with pytest.raises(ArgumentError, match=unknown):
        assert_kept_relations(below(trained, tmp_path), "kept.txt")


def test_a_file_without_a_relation_that_applies_to_the_test_is_refused(tmp_path):
    (tmp_path / "kept.txt").write_text(f"{FORMAT}\n{PROGRAM} | order | holds | dp=2\n")
    alone = fixture_of(relation_programs.train, tmp_path, {"microbatches": 1})

    with pytest.raises(RelationError, match="the test checks nothing: the relation 'order' does"):
        assert_kept_relations(below(alone, tmp_path), "kept.txt")


@pytest.mark.parametrize(
    "text",
    [
        "tests.support.metamorphic.relation_programs:train order holds",
        "tests.support.metamorphic.relation_programs:train | order | maybe | dp=2",
        " | order | holds | dp=2",
        "tests.support.metamorphic.relation_programs:train | | holds | dp=2",
    ],
)
def test_a_damaged_line_is_refused_with_its_number(trained, tmp_path, text):
    (tmp_path / "kept.txt").write_text(f"{FORMAT}\n{text}\n")

    with pytest.raises(ArgumentError, match=r"kept\.txt line 2 is damaged"):
        assert_kept_relations(below(trained, tmp_path), "kept.txt")


def test_a_file_of_another_format_is_refused(trained, tmp_path):
    (tmp_path / "kept.txt").write_text("# pytest-trainsafe relations, format 2\n")

    with pytest.raises(ArgumentError, match=r"kept\.txt does not begin with .* another version"):
        assert_kept_relations(below(trained, tmp_path), "kept.txt")


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"x" * (MAX_BYTES + 1)])
def test_an_unreadable_file_is_refused_with_its_name(trained, tmp_path, content):
    if content is not None:
        (tmp_path / "kept.txt").write_bytes(content)

    with pytest.raises(ArgumentError, match=r"kept\.txt cannot be read \(.*--trainsafe-learn"):
        assert_kept_relations(below(trained, tmp_path), "kept.txt")


def test_assert_kept_relations_refuses_arguments_of_wrong_types(trained):
    with pytest.raises(ArgumentTypeError, match="pass the fixture candidate_trace"):
        assert_kept_relations("a/trace", "kept.txt")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="pass the path of a text file"):
        assert_kept_relations(trained, 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="must be a list of relations"):
        assert_kept_relations(trained, "kept.txt", candidates=relations.Order())  # type: ignore[arg-type]
