"""Random programs and one fault in each: what does `assert_refines` say of captures of them?

    python benchmarks/bench_refine_random.py [--seed SEED] [--count 60] [--show]

A seed gives a sequential training program and its parallel form on 2 to 4 ranks.  Both run in
float64, the ranks as threads with collectives of this benchmark, and must agree.  A fault is
planted in the parallel text, and kept if float64 shows that a result differs.  Then the programs
are captured and judged.  It exits with 1 if a fault is certified or a right program refuted.
"""

from __future__ import annotations

import argparse
import random
import re
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from _refine_programs import drawn
from _refine_ranks import Captured, differs, part_of, run_in_threads, world
from _refine_writer import Fault, Input, Program, relation

from pytest_trainsafe import TrainsafeFailure, assert_refines
from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.judges.refine.graphs.modules import capture, untraced

EQUAL, DIFFERENT = 1e-6, 1e-4  # a second moment near 0 magnifies rounding
STYLES = ("tensor", "list", "functional")
Function = Callable[..., Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Verdict:
    """What is said of one pair of programs: "proved", "refuted" or "inconclusive"."""

    kind: str
    line: int | None = None
    report: str = ""

    @property
    def reason(self) -> str:
        """The report in one line."""
        text = " ".join(self.report.split()).removeprefix("trainsafe: ")
        return text[:230]


def compiled(program: Program, ranks: bool, fault: Fault | None, folder: Path) -> Function:
    """The function of a text, which stands in a file of the folder."""
    name = "parallel" if ranks else "sequential"
    if fault is not None:
        name = "faulty_" + fault.kind.replace(" ", "_")
    path = folder / f"{name}.py"
    path.write_text(program.text(ranks, fault))
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Function = module.program
    return function


def values(program: Program, seed: int) -> dict[str, torch.Tensor]:
    """Random inputs in float64."""
    generator = torch.Generator().manual_seed(seed)

    def one(given: Input) -> torch.Tensor:
        if given.kind == "ids":
            return torch.randint(0, given.high, given.shape, generator=generator)
        drawn = torch.randn(given.shape, generator=generator, dtype=torch.float64)
        return drawn.abs() + 0.1 if given.kind == "positive" else drawn

    return {given.name: one(given) for given in program.inputs}


def difference(program: Program, whole: Function, parts: Function, seed: int) -> float:
    """How far the ranks' results are from the sequential ones, in float64."""
    inputs = values(program, seed)
    torch.set_default_dtype(torch.float64)
    try:
        expected = whole(dict(inputs), None)
        ranks = [
            {g.name: part_of(inputs[g.name], g.cut, rank, program.mesh) for g in program.inputs}
            for rank in range(world(program.mesh))
        ]
        results = run_in_threads(parts, ranks, program.mesh)
    finally:
        torch.set_default_dtype(torch.float32)
    return max(
        differs(
            expected[name].detach(), [each[name].detach() for each in results], cut, program.mesh
        )
        for name, cut in program.outputs.items()
    )


def planted(
    program: Program, whole: Function, seed: int, folder: Path
) -> tuple[Fault, Function] | None:
    """A fault that changes a result, and the function with it."""
    chance = random.Random(seed)
    # First a kind, so that frequent lines do not decide which faults are tried.
    kinds = sorted({fault.kind for fault in program.faults})
    chance.shuffle(kinds)
    for kind in kinds:
        fault = chance.choice([each for each in program.faults if each.kind == kind])
        faulty = compiled(program, True, fault, folder)
        try:
            if difference(program, whole, faulty, seed) > DIFFERENT:
                return fault, faulty
        except RuntimeError:
            continue  # it does not run to its end
    return None


def zeros(program: Program) -> dict[str, torch.Tensor]:
    """Inputs for a capture, which takes no values."""
    return {
        g.name: torch.zeros(g.shape, dtype=torch.int64 if g.kind == "ids" else torch.float32)
        for g in program.inputs
    }


def judged(program: Program, sequential: Any, parts: Function, style: str) -> Verdict:
    """The verdict on the graph of the sequential program and captures of the ranks' function."""
    whole = zeros(program)
    count = world(program.mesh)

    def as_rank(rank: int) -> Any:
        def step(given: dict[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
            with untraced():
                ranks = Captured(rank, program.mesh, style)
            return parts(given, ranks)

        local = {g.name: part_of(whole[g.name], g.cut, rank, program.mesh) for g in program.inputs}
        return capture(step, local, rank=rank, ranks=count)

    relations = {
        "mesh": program.mesh,
        "inputs": {g.name: relation(g.cut) for g in program.inputs},
        "below": {g.name: g.high for g in program.inputs if g.kind == "ids"},
    }
    try:
        ranks = [as_rank(rank) for rank in range(count)]
        outputs = {name: relation(cut) for name, cut in program.outputs.items()}
        assert_refines(sequential, ranks, relations, outputs=outputs)
    except TrainsafeFailure as failure:
        report = str(failure)
        if any(finding.verdict == "inconclusive" for finding in failure.findings):
            return Verdict("inconclusive", None, report)
        at = re.search(r"starts at .*sequential\.py:(\d+)", report)
        return Verdict("refuted", int(at[1]) if at else None, report)
    except TrainsafeError as error:
        return Verdict("inconclusive", None, f"{type(error).__name__}: {error}")
    return Verdict("proved")


def examined(seed: int, folder: Path) -> tuple[Program, Verdict, Fault | None, Verdict | None]:
    """One program of a seed, and one fault in it."""
    program = drawn(seed)
    whole = compiled(program, False, None, folder)
    parts = compiled(program, True, None, folder)
    error = difference(program, whole, parts, seed)
    if error > EQUAL:
        raise AssertionError(f"the generator is wrong: seed {seed} differs by {error}")
    style = STYLES[seed % len(STYLES)]
    graph = capture(lambda given: whole(given, None), zeros(program))
    clean = judged(program, graph, parts, style)
    found = planted(program, whole, seed, folder)
    if found is None:
        return program, clean, None, None
    fault, faulty = found
    return program, clean, fault, judged(program, graph, faulty, style)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--only", type=int, help="examine the program of this seed, and show it")
    parser.add_argument("--show", action="store_true", help="print the reports of faults")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"seed {options.seed}, torch {torch.__version__}")
    chance = random.Random(options.seed)
    seeds = (
        [options.only]
        if options.only is not None
        else [chance.getrandbits(32) for _ in range(options.count)]
    )
    clean_counts: Counter[str] = Counter()
    fault_counts: Counter[str] = Counter()
    places: Counter[str] = Counter()
    for seed in seeds:
        with tempfile.TemporaryDirectory() as name:
            program, clean, fault, verdict = examined(seed, Path(name))
        clean_counts[clean.kind] += 1
        print(f"{seed:>10} {clean.kind:12} {program.title}", flush=True)
        if options.only is not None:
            for number, pair in enumerate(zip(program.sequential, program.parallel, strict=True)):
                print(
                    f"{number + 6:4} {pair[0]}"
                    + ("" if pair[0] == pair[1] else f"\n   | {pair[1]}")
                )
        if clean.kind != "proved":
            print(f"{'':11}{clean.reason}")
            if options.only is not None:
                print(clean.report)
        if fault is None or verdict is None:
            fault_counts["none"] += 1
            continue
        fault_counts[verdict.kind] += 1
        (text,) = fault.lines.values()
        place = ""
        if verdict.kind == "refuted":
            place = "elsewhere"
            if verdict.line is None:
                place = "without a line of the program"
            elif verdict.line in program.places(fault):
                place = "at its place"
            places[place] += 1
        (number,) = fault.lines
        print(f"{'':11}{fault.kind}: {verdict.kind} {place}")
        if verdict.kind != "refuted" or place != "at its place" or options.show:
            print(f"{'':11}  line {number + 6}: {text}; right {sorted(program.places(fault))}")
            if verdict.line:
                print(f"{'':11}  named: {program.sequential[verdict.line - 6].strip()}")
            print(f"{'':11}  {verdict.reason}")
            if options.only is not None:
                print(verdict.report)
    print("right programs:", dict(clean_counts))
    print("faults:", dict(fault_counts), dict(places))
    print(f"CPU seconds: {time.process_time():.0f}")
    return int(clean_counts["refuted"] > 0 or fault_counts["proved"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
