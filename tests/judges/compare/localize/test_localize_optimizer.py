"""The optimizer is judged alone where its gradients are wrong: it gets equal, generated ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import Kind
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.explain.common_factor import with_factor
from pytest_trainsafe.judges.compare.explain.common_step import follow_a_factor
from pytest_trainsafe.judges.compare.localize.blame import Stages, blame
from pytest_trainsafe.judges.compare.localize.description import located
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.run_spec import Rewrite
from pytest_trainsafe.trace.schema import NoteEvent
from tests.support.compare.clipped_traces import both, rung
from tests.support.compare.traces import PARAMETERS, Edit, Record, only
from tests.support.localize.blamed_traces import PROGRAM, noting
from tests.support.localize.stack_program import train

AGREES = "given equal generated gradients in both Runs, it updates all 11 trained parameters"


@pytest.mark.trainsafe(
    train,
    tp=2,
    dp=2,
    bug=["differentiated", "unreduced", "unreduced+step", "norm+step"],
    dtype=["float64"],
)
def test_a_fault_of_the_optimizer_is_found_beside_any_fault_of_gradients(trainsafe, search):
    bug = str(trainsafe.point.get("bug", ""))
    found = search()
    rung = found.rewritten()
    comparison, faults = found.judge(rung)

    expected = {
        "differentiated": [("backward", "<program>")],
        "unreduced": [("reduction", "blocks.1.down.bias")],
        "norm": [("norm", "<program>")],
        "step": [],
    }[bug.partition("+")[0]]
    faulty = [("optimizer", "blocks.1.down.bias")] if "step" in bug else []
    assert [(fault.phase, fault.target) for fault in faults] == expected + faulty
    rows = located(faults, comparison, rung, found.candidate.case.program, "").rows
    text = " ".join(f"{label} {text}" for label, text in rows)
    assert (AGREES in text) == (not faulty)
    said = {
        "unreduced+step": "step of blocks.1.down.bias is wrong, from equal gradients",
        # The planted fault is a line of the program after the step, which is known if states agree.
        "norm+step": "the program's own code changes blocks.1.down.bias after the optimizer's step",
    }
    assert [bug for bug, words in said.items() if words in text] == [bug] * bool(faulty)


TP = Point.of(tp=2)
GENERATED = tuple(NoteEvent("generated", f"step 0, {path}") for path in PARAMETERS)
REWRITE = {
    f"main_grad {path} 0": Rewrite(shape, 0.0, 1.0) for path, (shape, _) in PARAMETERS.items()
}


def shifted(kind: Kind, path: str) -> Edit:
    return only(kind, path, lambda record, at, part: part + 1.0, step=0)


def blamed(wrong: RungTraces) -> list[tuple[str, str]]:
    comparison = with_factor(wrong, compare(wrong))
    faults = blame(wrong, comparison, REWRITE, Stages(wrong.candidate))
    return [(fault.phase, fault.target) for fault in faults]


def test_a_step_by_a_wrong_gradient_is_judged_only_if_both_runs_replaced_the_gradient(
    tmp_path: Path,
) -> None:
    edit = both(shifted("main_grad", "fc1.bias"), shifted("optimizer_state", "fc1.bias.exp_avg"))
    reduction, optimizer = ("reduction", "fc1.bias"), ("optimizer", "fc1.bias")

    assert blamed(rung(tmp_path / "own", TP, edit, limit=0)) == [reduction]
    replaced = rung(tmp_path / "replaced", TP, edit, limit=0, notes=GENERATED)
    assert blamed(replaced) == [reduction, optimizer]
    kept = noting(replaced, NoteEvent("kept", "step 0, fc1.bias"))
    assert blamed(kept) == [reduction]


def test_a_factor_on_generated_gradients_is_recognised_by_their_values(tmp_path: Path) -> None:
    """As if the step clipped them by a wrong norm; the program's own gradients are others."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        if record.id.kind == "optimizer_state":
            return part * (0.49 if record.id.name.endswith("_sq") else 0.7)
        return part

    wrong = rung(tmp_path, TP, edit)
    ids = [id for id in wrong.reference.ids() if id.kind == "main_grad"]
    used = {}
    for id in ids:
        tensor = logical_tensor(wrong.reference, id).tensor
        assert tensor is not None
        used[id] = tensor
    others = {id: torch.ones_like(tensor) for id, tensor in used.items()}
    assert follow_a_factor(wrong, ids) == follow_a_factor(wrong, ids, used) == {*PARAMETERS}
    assert follow_a_factor(wrong, ids, others) == set()


def test_a_step_by_a_right_gradient_is_not_judged_if_only_one_run_replaced_the_gradient(
    tmp_path: Path,
) -> None:
    wrong = rung(tmp_path, TP, shifted("optimizer_state", "fc1.bias.exp_avg"), limit=0)
    assert blamed(wrong) == [("optimizer", "fc1.bias")]
    assert blamed(noting(wrong, *GENERATED)) == []


@pytest.mark.parametrize(("frozen", "which"), [("fc2.weight", "all 3"), ("", "3 of the 4")])
def test_the_optimizer_is_said_to_update_a_share_of_the_trained_parameters_only(
    tmp_path: Path, frozen: str, which: str
) -> None:
    """A frozen parameter has no gradient, and does not count."""
    wrong = rung(
        tmp_path, TP, shifted("main_grad", "fc1.bias"), limit=0, notes=GENERATED[:3],
        without=lambda id: id.path == frozen and id.kind in ("param_grad", "main_grad"),
    )  # fmt: skip
    comparison = with_factor(wrong, compare(wrong))
    faults = blame(wrong, comparison, REWRITE, Stages(wrong.candidate))
    rows = dict(located(faults, comparison, wrong, PROGRAM, "").rows)
    assert f"it updates {which} trained parameters as in the reference" in rows["agrees"]
