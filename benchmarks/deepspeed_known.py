"""Known bugs of DeepSpeed releases, recognised by their Point and by words of the report."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

from pytest_trainsafe.fixtures.deepspeed.rules import OLDEST
from pytest_trainsafe.reference_models.deepspeed_bugs import BUGS, DeepSpeedBug, find, programs
from pytest_trainsafe.reference_models.deepspeed_bugs.programs import small
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve

UNEXPLAINED = "unexplained"

#: The catalogue's program, whose axes differ from those of the other programs.
CATALOGUE = resolve(small.train)


@dataclass(frozen=True, slots=True)
class Known:
    """A bug: the first and the last release with it, axes of its Points, words of its reports.

    `catalogued` is whether it applies only to the catalogue's program, at exactly this Point.
    """

    name: str
    first: str
    last: str
    point: Mapping[str, object]
    words: tuple[str, ...]
    catalogued: bool = False

    def explains(self, case: Case, report: str) -> bool:
        """Whether this bug explains the report on a Case in the installed release."""
        installed = Version(importlib.metadata.version("deepspeed"))
        here = Version(self.first) <= installed <= Version(self.last)
        there = all(case.point.get(axis, 1) == value for axis, value in self.point.items())
        if self.catalogued:
            there = case.program.path == CATALOGUE.path and dict(case.point) == self.point
        return here and there and all(word in report for word in self.words)


def title(bug: DeepSpeedBug) -> str:
    """A catalogued bug's name among the known ones."""
    return f"{bug.name}: {bug.what}"


KNOWN = (
    Known(
        "stage 0 in bfloat16 creates its optimizer's states by a step, which changes the weights",
        "0.17.6",
        "0.19.8",
        {"zero": 0, "dtype": "bfloat16"},
        ("master_param · before the first step",),
    ),
    Known(
        "a pipeline in float32 clips the gradients of all stages by the first stage's norm",
        "0.19.8",
        "0.19.8",
        {"zero": 0, "pp": 2, "clip": True},
        ("exp_avg · optimizer_state · step 0",),
    ),
    Known(
        "#7773: a pipeline does not divide the loss by the number of accumulation steps",
        "0.16.0",
        "0.18.2",
        {"pp": 2},
        ("activation_grad · step 0", "times the reference, which equals micro-batches"),
    ),
    Known(
        "#7787: without ZeRO, the first backward of a pipeline raises an error",
        "0.18.3",
        "0.18.4",
        {"zero": 0, "pp": 2},
        ("RuntimeError: Direct calls to tensor.backward() are not supported",),
    ),
    Known(
        "#8154: a pipeline divides gradients by the accumulation again at each stage boundary",
        "0.18.3",
        "0.19.2",
        {"pp": 2},
        ("activation_grad · step 0", "times the reference, which equals 1/micro-batches"),
    ),
    Known(
        "stage 0 in float32 clips by the norm of one rank's experts instead of all experts",
        "0.19.8",
        "0.19.8",
        {"zero": 0, "ep": 2},
        ("exp_avg · optimizer_state · step 0",),
    ),
    Known(
        "under Ulysses, stage 3 averages gradients over the sequence's ranks; others sum them",
        "0.19.8",
        "0.19.8",
        {"cp": 2, "zero": 3},
        ("main_grad · step 0", "0.5 times the reference"),
    ),
    Known(
        "under Ulysses, stages 0 to 2 sum gradients that the documented loss requires averaged",
        "0.19.8",
        "0.19.8",
        {"cp": 2, "ulysses_loss": "documented"},
        ("main_grad · step 0", "2 times the reference"),
    ),
    Known(
        "if a device mesh declares Ulysses, stages 0 to 2 do not reduce gradients over its ranks",
        "0.19.8",
        "0.19.8",
        {"cp": 2, "ulysses": "mesh"},
        ("main_grad · step 0", "over cp"),
    ),
    Known(
        title(find("ds-7718")),
        "0.17.6",
        "0.18.2",
        {"zero": 2},
        ("main_grad · step 0", "of 4 are missing from the sum"),
    ),
)


_WARM_UP = {"dp": 2, "zero": 1, "groups": True, "steps": 4}

#: Failures at the catalogue's Points that other bugs cause, or behaviour that was documented then.
KNOWN_THERE = (
    *(
        Known(
            title(find("ds-6597")),
            "0.14.4",
            "0.15.2",
            {**_WARM_UP, "schedule": schedule},
            ("enter.weight · update · step 0",),
            catalogued=True,
        )
        for schedule in ("WarmupLR", "WarmupCosineLR")
    ),
    Known(
        "#8588: without ZeRO in half precision, the reported norm includes the loss scale",
        "0.17.6",
        "0.18.2",
        {"dp": 2, "zero": 0, "dtype": "bfloat16"},
        ("starts at     grad_norm · grad_norm · step 0",),
        catalogued=True,
    ),
    Known(
        "#7788: stage 1 in bfloat16 with accumulation in float32 uses the optimizer of stage 0",
        "0.17.6",
        "0.18.4",
        {"dp": 2, "zero": 1, "dtype": "bfloat16", "wide_accumulation": True},
        ("zero=1 had no effect: every rank of dp keeps all of the optimizer's state",),
        catalogued=True,
    ),
    Known(
        "no bug: the default of WarmupLR's warmup_max_lr is 0.001, later each group's own rate",
        "0.15.3",
        "0.17.1",
        {**_WARM_UP, "schedule": "WarmupLR"},
        ("· update · step 2",),
        catalogued=True,
    ),
)


def dated() -> list[tuple[DeepSpeedBug, Version, Version]]:
    """The bugs of the catalogue's program, each with the first and the last release that has it.

    Only bugs that a supported release has. Raises LookupError if there are none.
    """
    found = []
    for bug in BUGS:
        seen = re.findall(r"\d+\.\d+\.\d+", bug.wrong)
        if _module(bug) == small.__name__ and Version(seen[-1]) >= Version(OLDEST):
            found.append((bug, Version(seen[0]), Version(seen[-1])))
    if not found:
        raise LookupError(f"the catalogue has no bug of {small.__name__} in a supported release")
    return found


def _module(bug: DeepSpeedBug) -> str:
    """The module of a bug's program."""
    return f"{programs.__name__}.{bug.program}"


def catalogued_points() -> list[dict[str, object]]:
    """The Points at which catalogued bugs of supported releases act, each Point once."""
    points = [dict(bug.triggers) for bug, _, _ in dated()]
    return [point for number, point in enumerate(points) if point not in points[:number]]


def _catalogued(bug: DeepSpeedBug, first: Version, last: Version) -> Known:
    """A catalogued bug as a Known bug of the releases that its entry names."""
    words = f"starts at     {bug.tensor} · {bug.kind} · step {bug.step}"
    return Known(title(bug), str(first), str(last), bug.triggers, (words,), catalogued=True)


def known_by(case: Case, report: str) -> str:
    """The name of the first bug that explains the report on a Case; UNEXPLAINED if none does."""
    # A catalogued bug comes first: it names the Point and the first wrong tensor exactly.
    every = (*(_catalogued(*each) for each in dated()), *KNOWN_THERE, *KNOWN)
    return next((bug.name for bug in every if bug.explains(case, report)), UNEXPLAINED)
