"""Each planted cause of nondeterminism is named, and a deterministic program has no difference.

Two processes with different string hashes record the programs, with two patterns of new memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_trainsafe.judges.replay.determinism.cause import Cause, cause_of_draws, find_cause
from pytest_trainsafe.judges.replay.determinism.divergence import first_divergence
from pytest_trainsafe.judges.replay.determinism.judge import finding
from pytest_trainsafe.judges.replay.determinism.operator_look import first_operator
from pytest_trainsafe.judges.replay.determinism.variation import Environ, variables
from pytest_trainsafe.trace.operators import OperatorEvent
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from tests.support.replay import determinism_programs

#: The planted cause, the first step that differs, the code of the cause, and words of the report.
FAULTS = [
    ("unseeded generator", 0, "unseeded", "numpy.random.Generator of determinism_programs.py:"),
    ("order of a set", 1, "order", "PYTHONHASHSEED"),
    ("memory that is not written", 0, "uninitialised", "torch.empty"),
    ("scale by the time", 1, "time", "time.time is called before this"),
    ("scale by os.urandom", 0, "unseeded", "os.urandom is called before this"),
    ("nondeterministic operator", 0, "operator", "torch documents torch.bincount"),
    ("scale by an address", 0, "unknown", "results that are addresses: id at "),
    ("race of two threads", 0, "unknown", "every Run: threading.Thread.start at "),
]

#: Pairs of a seed of string hashes, which has its own process, and a pattern of new memory.
PROCESSES = [(1, 1), (2, 1), (1, 2)]


BYTES = {1: 0xA5, 2: 0x3C}

#: A Run of a program: hash seed and memory pattern, its number with these, and whether sealed.
Which = tuple[tuple[int, int], int, bool]
RUNS: list[Which] = [
    *(((1, 1), again, False) for again in range(2)),
    *((process, 0, False) for process in PROCESSES[1:]),
]
SEALED: list[Which] = [((1, 1), again, True) for again in range(2)]


@dataclass(frozen=True)
class Recorded:
    """The traces of every program, by planted cause and Run."""

    folder: Path

    def trace(self, fault: str, which: Which = RUNS[0]) -> Trace:
        return Trace.open(self.path(fault, which))

    def path(self, fault: str, which: Which) -> Path:
        (hashes, memory), again, sealed = which
        return self.folder / f"{fault}-{hashes}-{memory}-{again}{'-sealed' if sealed else ''}"

    def make(self, fault: str, specs: Sequence[RunSpec]) -> list[Trace]:
        """The traces that a session would record for these RunSpecs of a program.

        Further repetitions are those that were recorded.
        """
        by_environ: dict[Environ, tuple[int, int]] = {variables(*each): each for each in PROCESSES}
        made = []
        for each in specs:
            process = by_environ.get(each.environ, (1, 1))
            again = (each.repeat - 1) % 2 if process == (1, 1) else 0
            made.append(self.trace(fault, (process, again, each.sealed)))
        return made

    def cause(self, fault: str) -> Cause:
        """The cause of the first difference between the first Run and any other."""
        first = self.trace(fault)
        found = (first_divergence(first, self.trace(fault, which)) for which in RUNS[1:])
        differs = next(each for each in found if each is not None)
        spec = RunSpec(program="tests.support.replay.determinism_programs:train", dtype="float64")
        return find_cause(spec, differs, lambda specs: self.make(fault, specs))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Every program, recorded in each Run that its cause requires."""
    made = Recorded(tmp_path_factory.mktemp("determinism"))
    jobs = [("", 0, which) for which in RUNS]
    for fault, step, code, _ in FAULTS:
        varied = RUNS if code in ("order", "uninitialised", "unknown") else RUNS[:2]
        jobs += [(fault, step, which) for which in varied]
        jobs += [(fault, step, which) for which in SEALED if code not in ("order", "uninitialised")]
    running = []
    for hashes in (1, 2):
        own = [
            (fault, step, which[2], BYTES[which[0][1]], str(made.path(fault, which)))
            for fault, step, which in jobs
            if which[0][0] == hashes
        ]
        environ = {**os.environ, **dict(variables(hashes, 1)), "RANK": "0", "WORLD_SIZE": "1"}
        command = [sys.executable, determinism_programs.__file__, json.dumps(own)]
        running.append(
            subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
    for each in running:
        output, _ = each.communicate(timeout=120)
        assert each.returncode == 0, output.decode()
    return made


def test_a_deterministic_program_has_equal_bits_with_other_hashes_and_memory(recorded):
    first = recorded.trace("")

    assert [first_divergence(first, recorded.trace("", which)) for which in RUNS] == [None] * 4
    assert first.ranks[0].tensors


def test_the_recorded_operators_of_a_deterministic_program_do_not_differ(recorded):
    first = recorded.trace("")
    names = {event.name for event in first.ranks[0].events_of(OperatorEvent)}

    assert {"aten.empty.memory_format", "aten.bincount.default", "aten.addmm.default"} <= names
    assert "aten.mm.default" in names  # of the backward
    assert "aten.randn.generator" in names  # which the RNG ledger calls for the program
    assert [first_operator(first, recorded.trace("", which), 0) for which in RUNS] == [None] * 4


@pytest.mark.parametrize(("fault", "step", "code", "words"), FAULTS)
def test_a_planted_cause_is_named_with_its_operator_and_line(recorded, fault, step, code, words):
    cause = recorded.cause(fault)

    assert cause.code == code, cause
    assert words in cause.text
    assert cause.operator is not None
    assert cause.source.rpartition(":")[0] == determinism_programs.__file__


@pytest.mark.parametrize(
    ("fault", "differ"),
    [
        ("order of a set", [False, True, False]),
        ("memory that is not written", [False, False, True]),
    ],
)
def test_results_differ_only_if_the_setting_that_the_cause_depends_on_is_varied(
    recorded, fault, differ
):
    first = recorded.trace(fault)
    found = [first_divergence(first, recorded.trace(fault, which)) for which in RUNS[1:]]

    assert [each is not None for each in found] == differ


def test_the_first_difference_is_the_first_tensor_in_dataflow_order(recorded):
    first, second = (recorded.trace("scale by the time", which) for which in RUNS[:2])
    found = first_divergence(first, second)

    assert found is not None
    assert (found.how, found.rank, found.step) == ("values", 0, 1)
    assert str(found.where) == "loss · loss · step 1 · micro-batch 0"
    assert found.greatest


def test_an_unseeded_generator_is_recognised_from_the_rng_ledgers_alone(recorded):
    first, second = (recorded.trace("unseeded generator", which) for which in RUNS[:2])
    found = first_divergence(first, second)
    assert found is not None

    cause = cause_of_draws(first, second, found)

    assert cause is not None
    assert cause.code == "unseeded"


def test_seeded_generators_are_not_named_as_a_cause(recorded):
    first, second = (recorded.trace("order of a set", which) for which in (RUNS[0], RUNS[2]))
    found = first_divergence(first, second)
    assert found is not None

    assert cause_of_draws(first, second, found) is None


def test_a_finding_names_rank_run_operator_and_line(recorded):
    first, second = (recorded.trace("order of a set", which) for which in (RUNS[0], RUNS[2]))
    found = first_divergence(first, second)
    assert found is not None

    made = finding(first, found, recorded.cause("order of a set"), 1, 2)

    assert (made.verdict, made.judge, made.check) == ("fail", "replay", "determinism:order")
    assert made.message.startswith("differs by up to ")
    assert " on rank 0 in Run 2 of 2, which repeats Run 1; " in made.message
    assert dict(made.evidence)["operator"]
    assert made.source.rpartition(":")[0] == determinism_programs.__file__
