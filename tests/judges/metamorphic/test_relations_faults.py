"""Relations find faults that every Run of a program has, without a correct reference."""

from __future__ import annotations

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_same_by
from pytest_trainsafe.reference_models import masked
from pytest_trainsafe.reference_models.bugs import shared
from pytest_trainsafe.reference_models.bugs.shared import SharedFault
from tests.support.metamorphic.relation_runs import fixture_of

#: The faults of one rank.  `tests/fuzz/test_fuzz_relations.py` tests the one of two ranks.
ALONE = [fault for fault in shared.FAULTS if not fault.point]

#: FP8 scales come from the previous step, so that fault needs two steps.
SMALL = {"hidden": 8, "vocabulary": 16, "steps": 1}
TWO_STEPS = {"fp8-scale-of-last-microbatch": {"steps": 2}}


@pytest.mark.parametrize("fault", ALONE, ids=lambda fault: fault.name)
def test_a_fault_that_all_runs_share_is_reported_at_its_first_wrong_tensor(
    fault: SharedFault, tmp_path
):
    arguments = {**SMALL, **fault.arguments, **TWO_STEPS.get(fault.name, {}), "fault": fault.name}

    with pytest.raises(TrainsafeFailure) as failure:
        assert_same_by(fault.relation, fixture_of(masked.train, tmp_path, arguments))

    lead = failure.value.findings[0]
    assert lead.verdict == "fail"
    assert lead.where is not None
    assert (lead.where.kind, lead.where.path) == (fault.kind, fault.where)
    text = str(failure.value)
    assert f"does not train the same under the relation {fault.relation}\n" in text
    assert "  usually       " in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_clipping_before_unscaling_is_reported_as_a_remaining_loss_scale(tmp_path):
    arguments = {**SMALL, "fault": "clip-before-unscale"}

    with pytest.raises(TrainsafeFailure) as failure:
        assert_same_by("loss-scale", fixture_of(masked.train, tmp_path, arguments))

    text = str(failure.value)
    assert "(loss_scale=2.0 instead of loss_scale=1.0)" in text
    assert "pattern       the value is 2 times the reference\n" in text
    assert "so            the loss scale is still in it, or was divided out twice" in text
    assert "compared with" not in text
    assert "with the unchanged Run" in text
