"""The update of a parameter is its value after a step minus its value before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe.align.updates import update_parts
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_the_update_keeps_every_part_of_a_value(tmp_path: Path, dtype: torch.dtype) -> None:
    before = torch.tensor([1.0, 2.0]).to(dtype)
    after = (before * (1.5 + 0.5j if dtype.is_complex else 1.5)).to(dtype)
    write_manifest(
        tmp_path, manifest_of(RunSpec(program="m.train", axes=(), dtype="float32"), "cpu")
    )
    writer = RankWriter(tmp_path, 0)
    writer.add_tensor(TensorId(INITIAL, None, "param", "", "weight"), before)
    writer.add_tensor(TensorId(0, None, "param", "", "weight"), after)
    writer.close()

    [part] = update_parts(
        Trace.open(tmp_path, allow_incomplete=True), TensorId(0, None, "update", "", "weight")
    )

    wide = torch.complex128 if dtype.is_complex else torch.float64
    assert torch.equal(part.tensor, after.to(wide) - before.to(wide))
