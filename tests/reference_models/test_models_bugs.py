"""The first wrong tensor of each planted bug is that of its entry.

tests/end_to_end/test_planted_bugs.py tests that bugs are silent at other Points.
"""

from __future__ import annotations

import pytest

from pytest_trainsafe.reference_models.bugs import BUGS, Bug, find
from tests.support.reference_models.errors import exists_in_a_pipeline
from tests.support.reference_models.jobs_of_four_ranks import ALL_OVER, PLANTED, SILENT

#: Bugs that act in a step: rank_double records no parameters before the first step.
SEEN = [bug for bug in BUGS if bug.step >= 0]

by_name = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)


def first_key(bug: Bug) -> str:
    parameter = bug.kind not in ("activation", "activation_grad")
    path = f"{bug.module}.{bug.tensor}" if parameter else bug.module
    kind = "param" if bug.kind == "update" else bug.kind
    return f"{kind} {path} {'-' if kind in ('main_grad', 'param') else 0} {bug.step}"


@pytest.mark.parametrize("bug", SEEN, ids=lambda bug: bug.name)
def test_the_first_wrong_tensor_of_a_bug_is_that_of_its_entry(parallel, single, bug) -> None:
    errors = parallel[f"{bug.name} planted"].errors(single[bug.name])

    wrong = [key for key, error in errors.items() if error > 1e-9 and exists_in_a_pipeline(key)]
    assert wrong[0] == first_key(bug)
    # A missing update is small relative to the parameter.
    assert errors[wrong[0]] > (1e-3 if bug.kind == "update" else 0.01)


@by_name
def test_an_entry_triggers_at_its_planted_point_and_not_at_its_silent_point(bug) -> None:
    assert bug.triggers(PLANTED.get(bug.name, ALL_OVER))
    assert not bug.triggers(SILENT[bug.name])


def test_cp_loss_scaling_scales_every_gradient_by_cp_and_no_loss(parallel, single) -> None:
    wrong, right = parallel["cp-loss-scaling planted"].tensors, single["cp-loss-scaling"].tensors

    for key in right:
        if key.startswith(("activation_grad", "param_grad", "main_grad", "grad_norm")):
            assert wrong[key].sub(2 * right[key]).norm() < 1e-12 * right[key].norm()
        if key.startswith("loss"):
            assert abs(wrong[key] - right[key]) < 1e-12


def test_pp_stage_division_omits_the_last_layer_and_changes_the_loss(parallel, single) -> None:
    wrong, right = parallel["pp-stage-division planted"], single["pp-stage-division"]

    missing = {key.split(" ")[1] for key in right.tensors.keys() - wrong.tensors.keys()}
    assert missing - {".", "decoder"} == {
        path for key in right.tensors if (path := key.split(" ")[1]).startswith("decoder.layers.4")
    }
    assert abs(wrong.loss(0) - right.loss(0)) > 1e-3


def test_an_unknown_bug_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match=r"'tp-mask'.*tp-embedding-mask, .*cp-loss-scaling"):
        find("tp-mask")
