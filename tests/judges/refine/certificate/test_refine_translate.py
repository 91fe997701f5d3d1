"""A certificate rebuilds sequential results from the tensors that ranks hold."""

import pytest
import torch

from pytest_trainsafe import ArgumentError, assert_refines
from tests.support.refine.graphs import RANK, RELATION, SEQUENTIAL

OUTPUTS = {"mm": "concat 1", "mm_1": "sum", "add": "replica"}


def tensors(ranks=2):
    """What the sequential MLP computes before its softmax, and what each rank holds of it."""
    generator = torch.Generator().manual_seed(3)
    x, up, down = (torch.randn(shape, generator=generator) for shape in ((4, 6), (6, 8), (8, 6)))
    parts = zip(up.chunk(ranks, 1), down.chunk(ranks, 0), strict=True)
    mms = [(x @ left, torch.nn.functional.gelu(x @ left) @ right) for left, right in parts]
    total = torch.stack([each for _, each in mms]).sum(0)
    held = [{"mm": mm, "mm_1": mm_1, "add": x + total} for mm, mm_1 in mms]
    return {"mm": x @ up, "mm_1": total, "add": x + total}, held


def test_results_are_rebuilt_from_parts_and_terms():
    certificate = assert_refines(SEQUENTIAL, [RANK, RANK], RELATION, outputs=OUTPUTS)
    expected, held = tensors()
    found = certificate.translate(held)
    assert found.keys() == OUTPUTS.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value.double(), atol=1e-5)


def test_tensors_that_do_not_fit_are_named():
    certificate = assert_refines(SEQUENTIAL, [RANK, RANK], RELATION, outputs=OUTPUTS)
    _, held = tensors()
    with pytest.raises(ArgumentError, match="1 ranks, not 2"):
        certificate.translate(held[:1])
    with pytest.raises(ArgumentError, match="the ranks do not hold the same"):
        certificate.translate([held[0], held[1] | {"add": held[1]["add"] + 1}])
    with pytest.raises(ArgumentError, match="some ranks do not have add"):
        certificate.translate([held[0], {name: held[1][name] for name in ("mm", "mm_1")}])
