"""A wrong parameter that no optimizer holds is blamed on the program's own code, with its line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.judges.compare.localize.initial import whole_steps
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.facts import Changed, Site, Unheld
from tests.support.compare.clipped_traces import both, rung
from tests.support.compare.traces import Edit, Record, only
from tests.support.localize.blamed_traces import blamed, located_faults, noting, text_of, with_facts

DP = Point.of(dp=2)
AVERAGE = "fc1.bias"
UNHELD = Unheld((AVERAGE,))
STEP = Site("step", "/me/fit.py:40")

LERP = Changed(0, "/me/ema.py:5", "lerp_", "/me/fit.py:41", True, (0.25,), (AVERAGE,))
SEND = Changed(0, "/me/ema.py:7", "broadcast_", "/me/fit.py:41", True, (), (AVERAGE,))
EARLY = Changed(0, "/me/ema.py:5", "lerp_", "/me/fit.py:39", False, (0.25,), (AVERAGE,))


def shifted(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part + 1.0


def moved(path: str) -> Edit:
    return only("param", path, shifted, step=0)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> RungTraces:
    """A rung in which the value of AVERAGE after a step is wrong."""
    return rung(tmp_path_factory.mktemp("unheld"), DP, moved(AVERAGE), limit=0)


def in_reference(given: RungTraces, *facts: msgspec.Struct) -> RungTraces:
    as_candidate = noting(dataclasses.replace(given, candidate=given.reference), *facts)
    return dataclasses.replace(given, reference=as_candidate.candidate)


def on_ranks(given: RungTraces, *lines: tuple[msgspec.Struct, ...]) -> RungTraces:
    """The rung as if each rank of the candidate had recorded its own of `lines`."""
    ranks = [
        dataclasses.replace(rank, facts=with_facts(rank, *own))
        for rank, own in zip(given.candidate.ranks, lines, strict=True)
    ]
    return dataclasses.replace(given, candidate=given.candidate.with_ranks(ranks))


def report(given: RungTraces, ours: tuple[Changed, ...], theirs: tuple[Changed, ...]) -> Located:
    known = in_reference(noting(given, UNHELD, STEP, *ours), UNHELD, *theirs)
    return located_faults(known)


def pairs(given: RungTraces) -> list[tuple[str, str]]:
    return [(fault.phase, fault.target) for fault in blamed(given)]


def test_only_what_is_known_to_be_held_by_no_optimizer_of_both_is_not_blamed_on_its_step(
    wrong: RungTraces,
) -> None:
    assert pairs(in_reference(noting(wrong, UNHELD), UNHELD)) == [("unheld", AVERAGE)]
    assert pairs(wrong) == [("optimizer", AVERAGE)]
    assert pairs(in_reference(noting(wrong, Unheld()), Unheld())) == [("optimizer", AVERAGE)]
    assert pairs(in_reference(noting(wrong, UNHELD), Unheld())) == [("optimizer", AVERAGE)]


def test_a_parameter_that_some_ranks_optimizer_holds_is_held(wrong: RungTraces) -> None:
    """Ranks that shard the optimizer's state hold different parameters."""
    sharded = in_reference(on_ranks(wrong, (UNHELD,), (Unheld(),)), UNHELD)
    assert pairs(sharded) == [("optimizer", AVERAGE)]


def test_an_average_follows_a_wrong_trained_parameter_and_is_not_blamed(tmp_path: Path) -> None:
    found = rung(tmp_path, DP, both(moved(AVERAGE), moved("norm.weight")), limit=0)
    assert pairs(in_reference(noting(found, UNHELD), UNHELD)) == [("optimizer", "norm.weight")]


def test_the_report_says_that_the_programs_own_code_changes_it_and_names_the_line(
    wrong: RungTraces,
) -> None:
    found = report(wrong, (LERP, SEND), (LERP, SEND))
    assert (
        "the values of fc1.bias are wrong; no watched optimizer holds it: the program's own code "
        "changes it"
    ) in text_of(found)
    assert "optimizer's step" not in text_of(found)
    assert (found.source, found.what) == (
        "/me/ema.py:5",
        "changes parameters that no watched optimizer holds, by lerp_; called at /me/fit.py:41",
    )
    for clause in ("reference", "was seen", "gets"):
        assert clause not in text_of(found)


def test_a_change_on_the_other_side_of_the_optimizers_step_is_named(wrong: RungTraces) -> None:
    found = report(wrong, (EARLY,), (LERP,))
    assert "changes it before the optimizer's step, and in the reference after it" in text_of(found)
    assert found.what.endswith("called at /me/fit.py:39")
    # A second change, on the reference's side, leaves open which one is wrong.
    assert "before the optimizer's step" not in text_of(report(wrong, (EARLY, LERP), (LERP,)))


def test_another_number_than_the_references_is_named(wrong: RungTraces) -> None:
    other = Changed(0, LERP.at, "lerp_", LERP.caller, True, (0.125,), (AVERAGE,))
    found = report(wrong, (other,), (LERP,))
    assert "lerp_ at /me/ema.py:5 gets 0.125, and in the reference 0.25" in text_of(found)
    close = Changed(0, LERP.at, "lerp_", LERP.caller, True, (0.25 * (1 + 1e-9),), (AVERAGE,))
    assert "gets" not in text_of(report(wrong, (close,), (LERP,)))


def test_a_rank_on_which_nothing_changes_it_and_the_references_other_line_are_named(
    wrong: RungTraces,
) -> None:
    idle = in_reference(on_ranks(wrong, (UNHELD, LERP), (UNHELD,)), UNHELD, LERP, SEND)
    found = located_faults(idle)
    assert "on rank 1 no line that changes it was seen" in text_of(found)
    assert "the reference also changes it by broadcast_ at /me/ema.py:7" in text_of(found)
    assert found.source == LERP.at


def test_a_line_instead_of_the_references_leads(wrong: RungTraces) -> None:
    found = report(wrong, (SEND,), (LERP,))
    assert found.source == SEND.at
    assert "; the reference changes it by lerp_ at /me/ema.py:5" in text_of(found)


def test_lines_of_other_steps_and_parameters_are_not_named(wrong: RungTraces) -> None:
    later = Changed(1, "/me/ema.py:9", "lerp_", parameters=(AVERAGE,))
    others = Changed(0, "/me/ema.py:11", "lerp_", parameters=("norm.weight",))
    found = report(wrong, (later, others), (later, others))
    assert found.source not in (later.at, others.at)
    assert "was seen" not in text_of(found)


def test_a_parameter_that_only_the_references_optimizer_holds_is_named_so(
    wrong: RungTraces,
) -> None:
    found = located_faults(in_reference(noting(wrong, UNHELD, STEP), Unheld()))
    assert "no watched optimizer holds fc1.bias, but one does in the reference" in text_of(found)
    assert found.source == STEP.at


def test_in_whole_steps_the_optimizer_is_not_blamed_either(wrong: RungTraces) -> None:
    known = in_reference(noting(wrong, UNHELD, STEP), UNHELD)
    program = Program(path="package.fit:train")
    found = whole_steps(compare(known), Places(known.candidate, program, known.reference))
    assert "no watched optimizer holds it" in text_of(found)
    assert (found.faults, found.source) == ((("unheld", AVERAGE),), "")
    held = in_reference(noting(wrong, Unheld(), STEP), Unheld())
    blamed = whole_steps(compare(held), Places(held.candidate, program, held.reference))
    assert "the optimizer's step of fc1.bias is wrong" in text_of(blamed)


def test_in_whole_steps_an_average_follows_a_wrong_trained_parameter_too(tmp_path: Path) -> None:
    wrong = rung(tmp_path, DP, both(moved(AVERAGE), moved("fc2.weight")), limit=0)
    known = in_reference(noting(wrong, UNHELD, STEP), UNHELD)
    program = Program(path="package.fit:train")
    found = whole_steps(compare(known), Places(known.candidate, program, known.reference))
    assert (found.faults, found.source) == ((("optimizer", "fc2.weight"),), STEP.at)
