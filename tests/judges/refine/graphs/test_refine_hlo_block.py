"""A block of a transformer in HLO, in full sizes: proved from the relation of its inputs alone."""

import pytest

from pytest_trainsafe import TrainsafeFailure, assert_refines
from tests.support.refine.hlo_block import block, relation


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_tensor_of_a_block_has_a_relation(ranks):
    certificate = assert_refines(block(), [block(ranks)] * ranks, relation(ranks))
    assert certificate.missing == []
    assert len(certificate.relations) > 90
    (output,) = certificate.outputs.values()
    assert output.startswith("replica of add.")
    small = certificate.sizes[0]["x"]
    assert small[0] * small[1] < 1000, "a batch as long as the heads of a rank keeps its size"


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"reduce": False}, "an all-reduce over tp is missing"),
        ({"shift": 64}, r"slice\.6\S* has no clean relation"),
    ],
)
def test_a_fault_of_a_block_is_refuted_in_small_sizes(change, pattern):
    with pytest.raises(TrainsafeFailure, match=pattern) as failure:
        assert_refines(block(), [block(2, **change)] * 2, relation(2))
    assert "starts at" in str(failure.value)
