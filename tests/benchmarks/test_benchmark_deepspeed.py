"""The sweeps of DeepSpeed know the catalogued bugs, and judge the Points that trigger them."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
from packaging.version import Version

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.reference_models import deepspeed_gpt
from pytest_trainsafe.reference_models.deepspeed_bugs import BUGS
from pytest_trainsafe.reference_models.deepspeed_bugs.programs import small
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells


def case(program: Any, point: dict[str, Any]) -> Case:
    axes = {axis: [value] for axis, value in point.items()}
    (cell,) = cells(read_marker([program], axes), Settings(), lambda *_: None)
    return cell.case


def installed(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: release)


def test_the_sweep_of_releases_contains_the_axes_that_trigger_bugs() -> None:
    from deepspeed_known import catalogued_points

    axes = {axis for point in catalogued_points() for axis in point}

    assert axes >= {"offload", "schedule", "groups", "microbatches", "by_hand", "wide_accumulation"}


def test_a_catalogue_without_a_bug_of_the_program_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import deepspeed_known

    others = tuple(bug for bug in BUGS if bug.program != "small")
    monkeypatch.setattr(deepspeed_known, "BUGS", others)

    with pytest.raises(LookupError, match=r"no bug of .*small in a supported release"):
        deepspeed_known.catalogued_points()


def test_a_report_is_attributed_to_a_catalogued_bug_only_in_affected_releases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from deepspeed_known import UNEXPLAINED, dated, known_by, title

    for bug, first, last in dated():
        report = f"  starts at     {bug.tensor} · {bug.kind} · step {bug.step} · float32"
        here = case(small.train, dict(bug.triggers))
        for release in (first, Version(bug.release), last):
            installed(monkeypatch, str(release))
            assert known_by(here, report) == title(bug)
        installed(monkeypatch, bug.right)
        assert known_by(here, report) == UNEXPLAINED


def test_a_report_of_another_program_is_not_attributed_to_a_catalogued_bug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from deepspeed_known import UNEXPLAINED, dated, known_by

    bug = next(bug for bug, *_ in dated() if bug.name == "ds-6847")
    installed(monkeypatch, bug.release)
    report = f"  starts at     {bug.tensor} · {bug.kind} · step {bug.step} · float32"

    assert known_by(case(deepspeed_gpt.train, dict(bug.triggers)), report) == UNEXPLAINED


def test_every_release_with_a_catalogued_bug_is_swept() -> None:
    from bench_deepspeed_releases import RELEASES
    from deepspeed_known import dated

    assert {bug.release for bug, *_ in dated()} <= set(RELEASES)


def test_an_affected_release_that_does_not_show_a_catalogued_bug_is_reported() -> None:
    from bench_deepspeed_releases import unshown
    from deepspeed_known import dated, title

    every = {title(bug): 1 for bug, *_ in dated()}
    bug = next(bug for bug, *_ in dated() if bug.name == "ds-7718")
    without = {name: count for name, count in every.items() if name != title(bug)}

    assert unshown([{"release": "0.18.2", "bugs": every}]) == []
    assert unshown([{"release": "0.18.2", "bugs": without}]) == [
        f"0.18.2 does not show {title(bug)}"
    ]
    assert unshown([{"release": bug.right, "bugs": every}]) == []


def test_names_of_bugs_are_linked_to_their_issue_or_page() -> None:
    from bench_deepspeed_releases import _linked

    assert (
        _linked("#12: a loss")
        == "[#12](https://github.com/deepspeedai/DeepSpeed/issues/12): a loss"
    )
    assert _linked("ds-12: a loss") == "[ds-12](deepspeed-bugs.md#ds-12): a loss"
    assert _linked("stage 0 is wrong") == "stage 0 is wrong"
