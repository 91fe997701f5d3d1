"""Judges metamorphic relations: they must find shared faults, and hold for clean programs.

The first table has a row for each fault of `reference_models/bugs/shared.py`: the verdict of the
comparison at dp=2 with a reference that has the same fault, the verdict of the relation, and the
first tensor that differs. The second table has every relation that the reference models offer, on a
single device in every dtype and at some Points in float64; every verdict other than a pass is a
false alarm.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from _measure import finish, machine, quick, show
from _rungs import case, session

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.errors import RelationError
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.judges.metamorphic.judge import judge_relation
from pytest_trainsafe.reference_models.bugs import shared
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case

DTYPES = ("float64", "float32", "bfloat16")
SETTINGS = Settings(localize=0.0)
FLOAT64 = SETTINGS._replace(dtypes=("float64",))

SMALL: dict[str, object] = {"hidden": 16, "heads": 2, "layers": 1, "seq_len": 8}
NARROW: dict[str, object] = {**SMALL, "kv_heads": 2, "ffn": 16}

#: Clean programs with their arguments and Points. A single device is judged in every dtype as well;
#: the Points are judged in float64 only.
CLEAN: tuple[tuple[str, Mapping[str, object], tuple[Mapping[str, int], ...]], ...] = (
    (
        "gpt",
        {**SMALL, "clip": 0.1, "microbatches": 4},
        ({"tp": 2}, {"dp": 2}, {"cp": 2}, {"pp": 2, "layers": 2}),
    ),
    ("gpt", {**SMALL, "fp8": True}, ()),
    ("llama", {**NARROW, "microbatches": 4}, ({"tp": 2}, {"dp": 2})),
    ("moe", {**NARROW, "microbatches": 4}, ({"dp": 2, "ep": 2},)),
    ("moe", {**NARROW, "balance": 0.0, "microbatches": 4}, ({"dp": 2, "ep": 2},)),
    ("lstm", {"hidden": 8, "seq_len": 8}, ({"dp": 2},)),
    ("cnn", {"channels": 4, "size": 8}, ({"dp": 2},)),
    ("masked", {"microbatches": 4}, ({"dp": 2},)),
    ("masked", {"microbatches": 4, "fp8": True}, ({"dp": 2},)),
    ("mixed", {"microbatches": 4}, ({"dp": 2}, {"tp": 2, "dp": 2})),
)


def main() -> None:
    small = quick(__doc__)
    facts = machine()
    with session(SETTINGS) as opened:
        planted = shared.FAULTS[: 3 if small else None]
        faults = [noted(fault_row(opened, fault)) for fault in planted]
        clean = [noted(row) for each in clean_cases(small) for row in clean_rows(opened, *each)]
    show_faults(faults)
    show_clean(clean)
    finish("metamorphic", facts, {"faults": faults, "clean": clean})


def noted(row: dict[str, Any]) -> dict[str, Any]:
    """Print a row to show progress, since the tables come at the end; returns the row."""
    print(" | ".join(map(str, row.values())), file=sys.stderr, flush=True)
    return row


def fault_row(opened: Session, fault: shared.SharedFault) -> dict[str, Any]:
    """The verdicts of the comparison and of the relation on one fault."""
    arguments = {"microbatches": 2, **fault.arguments, "fault": fault.name}
    even = {**arguments, "microbatches": 4}
    compared = _case("masked", Point.of(dp=2), even, FLOAT64)
    against = judge_case(opened.candidate(compared), opened.reference(compared)).verdict
    began = time.perf_counter()
    one = _case("masked", Point.of(fault.point), arguments, FLOAT64)
    found = judge_relation(opened.candidate(one), _offered(one)[fault.relation], (), ())
    first = next((each for each in found.findings if each.verdict == "fail"), None)
    where = first.where if first is not None else None
    return {
        "fault": fault.name,
        "comparison": against,
        "relation": fault.relation,
        "point": str(Point.of(fault.point)),
        "verdict": found.verdict,
        "first": str(where or ""),
        "as_catalogued": where is not None
        and (where.kind, where.path) == (fault.kind, fault.where),
        "seconds": round(time.perf_counter() - began, 2),
    }


def clean_cases(small: bool) -> Iterator[tuple[str, Case]]:
    """The clean Cases, each with its label."""
    for program, arguments, points in CLEAN[-1:] if small else CLEAN:
        label = program + "".join(
            f" {n}={arguments[n]}" for n in ("fp8", "balance") if n in arguments
        )
        # With FP8 in bfloat16, rounding hides most gradients of such a small model.
        rungs = DTYPES[:1] if small or arguments.get("fp8") else DTYPES
        yield label, _case(program, Point.of(), arguments, SETTINGS._replace(dtypes=rungs))
        for point in () if small else points:
            axes = {name: size for name, size in point.items() if name != "layers"}
            own = {**arguments, **{n: size for n, size in point.items() if n == "layers"}}
            yield label, _case(program, Point.of(axes), own, FLOAT64)


def clean_rows(opened: Session, label: str, one: Case) -> Iterator[dict[str, Any]]:
    """The verdict of each relation that the program offers."""
    traces = opened.candidate(one)
    for name, relation in _offered(one).items():
        row: dict[str, Any] = {
            "program": label,
            "point": str(one.point),
            "dtypes": list(one.rungs),
            "relation": name,
        }
        try:
            found = judge_relation(traces, relation, (), ())
        except RelationError as error:
            yield {**row, "verdict": "does not apply", "tensors": 0, "why": str(error)}
            continue
        assert found.compared is not None
        count = sum(sum(rung.comparison.compared.values()) for rung in found.compared.rungs)
        why = "; ".join(each.message for each in found.findings[:2])
        yield {**row, "verdict": found.verdict, "tensors": count, "why": why}
    opened.discard(traces)


def _case(program: str, point: Point, arguments: Mapping[str, object], settings: Settings) -> Case:
    return case(program, point, settings, arguments)


def _offered(one: Case) -> dict[str, Any]:
    return {relation.name: relation for relation in one.program.traits.relations}


def show_faults(rows: list[dict[str, Any]]) -> None:
    columns = ("fault", "comparison at dp=2", "relation", "point", "found", "first tensor")
    cells = [
        (r["fault"], r["comparison"], r["relation"], r["point"], r["verdict"], r["first"])
        for r in rows
    ]
    show("Faults that every Run shares", columns, cells)
    found = sum(row["verdict"] == "fail" for row in rows)
    right = sum(row["as_catalogued"] for row in rows)
    print(f"\n  {found} of {len(rows)} found, {right} at the catalogued tensor")


def show_clean(rows: list[dict[str, Any]]) -> None:
    columns = ("program", "point", "relation", "dtypes", "tensors", "verdict")
    cells = [
        (r["program"], r["point"], r["relation"], len(r["dtypes"]), r["tensors"], r["verdict"])
        for r in rows
    ]
    show("Clean programs", columns, cells)
    judged = [row for row in rows if row["verdict"] != "does not apply"]
    alarms = [row for row in judged if row["verdict"] != "pass"]
    print(f"\n  {len(judged)} judged, {len(alarms)} alarms")
    for row in alarms:
        print(f"  {row['program']} at {row['point']}, {row['relation']}: {row['why']}")


if __name__ == "__main__":
    main()
