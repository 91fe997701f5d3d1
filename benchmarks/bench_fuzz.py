"""Fuzzes every planted bug without a hint, and compares the axes found with those of the catalogue.

Prints for each bug the number of examples until one fails, the number of Points that the search for
the needed axes ran, the number of other failures that were reported (there is one bug, so more than
none is wrong), the seconds, the axes that the failure needs according to the report, and the
true axes: those that the same search finds from the catalogue's `triggers`, without Runs. All bugs
take about an hour on two cores:

    python benchmarks/bench_fuzz.py
    python benchmarks/bench_fuzz.py --only cp-layernorm-grads zero-gather-lost
    python benchmarks/bench_fuzz.py --cover     # which bugs covering designs trigger; no Runs
    python benchmarks/bench_fuzz.py --beside    # each bug with the launchers threads and warm
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _measure import finish, machine, show
from _recorder import Recorder

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.fuzz.failure import FuzzFailure
from pytest_trainsafe.fuzz.source import PointSource, point_source
from pytest_trainsafe.reference_models.bugs import BUGS, Bug
from pytest_trainsafe.report.interaction import interaction_text
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells
from pytest_trainsafe.sweep.search.interaction import Interaction
from pytest_trainsafe.sweep.search.minimise import minimise
from pytest_trainsafe.sweep.search.space import no_rule

#: The axes of each program; in float64, where every bug of logic shows.
TRANSFORMER: dict[str, Any] = {
    **dict.fromkeys(("tp", "cp", "dp", "pp"), (1, 2, 4)),
    "sp": [False, True],
    "zero": [0, 1],
    "recompute": ["none", "selective", "full"],
    "dtype": ["float64"],
}
EXPERTS: dict[str, Any] = {
    **dict.fromkeys(("tp", "cp", "dp", "ep"), (1, 2, 4)),
    "sp": [False, True],
    "zero": [0, 1],
    "dtype": ["float64"],
}
AXES = {"gpt": TRANSFORMER, "llama": TRANSFORMER, "moe": EXPERTS}

#: Small sizes, so that a Run takes hardly longer than its launch; a bug's arguments override them.
SMALL = {"hidden": 16, "heads": 4, "seq_len": 16, "batch_size": 1, "steps": 1}

TEST = """
from pytest_trainsafe import assert_trainsafe, trainsafe_fuzz
from pytest_trainsafe.reference_models import {program}

@trainsafe_fuzz({program}.train, max_examples={examples}, max_world_size={most}, **{keywords!r})
def test_fuzz(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


@dataclass
class Found:
    """The result of fuzzing one bug.

    `failure` is None if no example failed, `error` is any other error of the test, and `true` is
    what the bug needs according to the catalogue.
    """

    bug: Bug
    seconds: float
    failure: FuzzFailure | None
    error: str
    true: Interaction | None

    @property
    def axes(self) -> tuple[str, ...]:
        return axes_of(self.failure.interaction) if self.failure else ()

    @property
    def true_axes(self) -> tuple[str, ...]:
        return axes_of(self.true) if self.true else ()

    @property
    def right(self) -> bool:
        return self.failure is not None and self.axes == self.true_axes


def main() -> None:
    asked = _arguments()
    facts = machine()
    if asked.cover:
        cover(asked.max_world_size, facts)
        return
    # No example database, which would begin with the failures of an earlier run.
    hypothesis.settings.register_profile("benchmark", database=None)
    hypothesis.settings.load_profile("benchmark")
    wanted = [bug for bug in BUGS if not asked.only or bug.name in asked.only]
    if asked.beside:
        beside(wanted, asked.examples, asked.max_world_size, facts)
        return
    found = []
    for bug in wanted:
        found.append(fuzz(bug, asked.examples, asked.max_world_size, asked.launcher))
        axes = " ".join(found[-1].axes) or "not found"
        print(f"{bug.name}: {axes}, {found[-1].seconds:.0f} s", file=sys.stderr, flush=True)
    rows = [
        [
            one.bug.name,
            one.failure.examples if one.failure else "-",
            one.failure.interaction.tried if one.failure else "-",
            len(one.failure.others) if one.failure else "-",
            f"{one.seconds:.0f}",
            " ".join(one.axes) or one.error or "not found",
            " ".join(one.true_axes),
            "yes" if one.right else "NO",
        ]
        for one in found
    ]
    columns = ["", "examples", "search", "others", "seconds", "axes found", "axes true", "same"]
    show("Planted bugs, fuzzed", columns, rows)
    for one in found:
        if one.failure:
            print(f"  {one.bug.name}: {interaction_text(one.failure.interaction)}")
    right = sum(one.right for one in found)
    print(f"  {right} of {len(found)} found within {asked.examples} examples, with the true axes.")
    figures = [
        {
            "bug": one.bug.name,
            "examples": one.failure.examples if one.failure else None,
            "search": one.failure.interaction.tried if one.failure else None,
            "others": len(one.failure.others) if one.failure else None,
            "seconds": one.seconds,
            "axes": one.axes,
            "true": one.true_axes,
        }
        for one in found
    ]
    finish("fuzz", facts, {"examples": asked.examples, "bugs": figures})
    sys.exit(right < 0.9 * len(found))


def beside(bugs: list[Bug], examples: int, most: int, facts: dict[str, object]) -> None:
    """Fuzzes each bug with ranks that share a process and with processes, in turns."""
    figures: list[dict[str, object]] = []
    for number, bug in enumerate(bugs):
        names = ("threads", "warm") if number % 2 else ("warm", "threads")
        found = {name: fuzz(bug, examples, most, name) for name in names}
        ours, theirs = found["threads"], found["warm"]
        figures.append(
            {
                "bug": bug.name,
                "threads": " ".join(ours.axes) or ours.error or "not found",
                "warm": " ".join(theirs.axes) or theirs.error or "not found",
                "threads_seconds": ours.seconds,
                "warm_seconds": theirs.seconds,
                "ratio": ours.seconds / theirs.seconds,
            }
        )
        print(figures[-1], file=sys.stderr, flush=True)
    shown = [[f"{v:.2f}" if isinstance(v, float) else v for v in row.values()] for row in figures]
    show("Planted bugs, fuzzed with two launchers", list(figures[0]), shown)
    totals = [sum(float(str(row[f"{name}_seconds"])) for row in figures) for name in names]
    same = sum(row["threads"] == row["warm"] for row in figures)
    ratio = totals[names.index("threads")] / totals[names.index("warm")]
    print(f"  {same} of {len(figures)} alike, in {ratio:.2f} of the time with threads.")
    finish("fuzz_beside", facts, {"examples": examples, "bugs": figures})


def cover(most: int, facts: dict[str, object]) -> None:
    """Shows at how many Points of a covering design each bug acts, by the catalogue's triggers."""
    rows: list[list[object]] = []
    triggered = {2: 0, 3: 0}
    for bug in BUGS:
        arguments = {**SMALL, **bug.arguments}
        axes = {name: each for name, each in AXES[bug.program].items() if name not in arguments}
        module = f"pytest_trainsafe.reference_models.{bug.program}:train"
        declared = read_marker([module], {**axes, "args": arguments})
        product = math.prod(len(values) for _, values in declared.axes)
        row: list[object] = [bug.name, product]
        for strength in triggered:
            settings = Settings(max_world_size=most, cover=strength)
            kept = cells(declared, settings, no_rule)
            assert kept[0].cover is not None
            acts = sum(bug.triggers(cell.case.point) for cell in kept)
            triggered[strength] += acts > 0
            row += [kept[0].cover.points, len(kept), acts] if strength == 2 else [len(kept), acts]
        rows.append(row)
    columns = ["", "product", "valid", "pairwise", "trigger", "3-wise", "trigger"]
    show("Covering designs, and the Points of them that trigger a planted bug", columns, rows)
    for strength, count in triggered.items():
        print(f"  strength {strength}: {count} of {len(BUGS)} bugs act at some Point.")
    finish("fuzz", facts, {"cover": rows})


def fuzz(bug: Bug, examples: int, most: int, launcher: str = "auto") -> Found:
    """Fuzzes a bug in a new pytest session."""
    arguments = {**SMALL, **bug.arguments}
    axes = {name: each for name, each in AXES[bug.program].items() if name not in arguments}
    keywords = {**axes, "args": arguments, "candidate_args": {"bug": bug.name}}
    recorder = Recorder()
    with tempfile.TemporaryDirectory(prefix="trainsafe-fuzz-") as temporary:
        # Python keeps a module by its name, and a bug may be fuzzed twice.
        name = f"{bug.name.replace('-', '_')}_{launcher}"
        test = Path(temporary, f"test_{name}.py")
        Path(temporary, "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        text = TEST.format(program=bug.program, examples=examples, most=most, keywords=keywords)
        test.write_text(text, encoding="utf-8")
        words = ["-p", "no:terminal", "--trainsafe-localize=off", "--rootdir", temporary]
        words += ["--trainsafe-launcher", launcher]
        began = time.perf_counter()
        pytest.main([*words, str(test)], plugins=[recorder])
        seconds = time.perf_counter() - began
    error = recorder.error
    failure = error if isinstance(error, FuzzFailure) else None
    other = "" if error is None or failure is not None else str(error).partition("\n")[0]
    module = f"pytest_trainsafe.reference_models.{bug.program}:train"
    true = true_interaction(bug, point_source(module, most, keywords), failure)
    return Found(bug, seconds, failure, other, true)


def true_interaction(
    bug: Bug, source: PointSource, failure: FuzzFailure | None
) -> Interaction | None:
    """The axes that a bug needs at the Point that was found, according to the catalogue.

    If nothing was found, at the first valid Point that triggers the bug. None if the bug does not
    act at that Point, or at no Point that is tried.
    """
    source.begin(Settings(max_world_size=source.max_world_size), no_rule)
    space = source.space
    start = failure.interaction.point if failure is not None else None
    if start is None:
        drawn = map(space.repaired, space.drawn_at_random(10_000))
        start = next((point for point in drawn if bug.triggers(point)), None)
    if start is None or not bug.triggers(start):
        return None
    return minimise(space, start, lambda point: "fails" if bug.triggers(point) else "passes")


def axes_of(interaction: Interaction) -> tuple[str, ...]:
    """The axes that a failure needs, with those that the rules imply."""
    return tuple(sorted(each.axis for each in (*interaction.needs, *interaction.implied)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", metavar="NAME", help="Fuzz only these bugs")
    parser.add_argument("--examples", type=int, default=100, help="The most examples per bug")
    parser.add_argument("--max-world-size", type=int, default=4)
    parser.add_argument("--launcher", default="auto", help="As --trainsafe-launcher")
    parser.add_argument("--beside", action="store_true", help="Compare the launchers threads, warm")
    parser.add_argument("--cover", action="store_true", help="Covering designs, without Runs")
    parser.add_argument("--quick", action="store_true", help="Two bugs, 30 examples each")
    asked = parser.parse_args()
    if asked.quick:
        asked.only, asked.examples = ["sp-layernorm-grads", "cp-layernorm-grads"], 30
    return asked


if __name__ == "__main__":
    main()
