"""Complex, integer and empty tensors are judged too: a healthy one passes, a wrong one fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.layout import Layout, Partial, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.rung import RungTraces
from tests.support.compare.traces import MICROBATCHES, Edit, Record, draw, healthy, training, write

POINT = Point.of(tp=2)
CUT: Layout = (Shard(0, "tp"),)


def complex_values(index: int, noise: float) -> torch.Tensor:
    value = torch.complex(draw(f"real {index}", (6, 4)), draw(f"imaginary {index}", (6, 4)))
    return value * (1 + noise * draw("noise", (6, 4)))


def tokens(index: int, noise: float) -> torch.Tensor:
    return (draw(f"tokens {index}", (6, 4)) * 100).long()


def mask(index: int, noise: float) -> torch.Tensor:
    return draw(f"mask {index}", (6, 4)) > 0


def nothing(index: int, noise: float) -> torch.Tensor:
    return torch.zeros(6, 0, dtype=torch.float64)


Make = Callable[[int, float], torch.Tensor]


def rung(folder: Path, make: Make, layout: Layout, edit: Edit) -> RungTraces:
    def records(noise: float) -> list[Record]:
        odd = [
            Record(TensorId(0, i, "activation", "odd", "output"), make(i, noise), layout)
            for i in range(MICROBATCHES)
        ]
        return [*odd, *training("float64", noise, steps=1)]

    return RungTraces(
        "float64",
        write(folder / "candidate", records(1e-16), POINT, edit=edit),
        write(folder / "reference", records(0.0)),
        write(folder / "perturbed", records(2.0**-52)),
    )


def wrong(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    if record.id.module != "odd" or at["tp"] == 0:
        return part
    if part.is_complex():
        return part.conj().resolve_conj()
    return ~part if part.dtype == torch.bool else part + 1


def shorter(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    return part[:-1] if record.id.module == "odd" else part


@pytest.mark.parametrize("make", [complex_values, tokens, mask, nothing])
def test_a_healthy_complex_integer_boolean_or_empty_tensor_passes(
    tmp_path: Path, make: Make
) -> None:
    found = compare(rung(tmp_path, make, CUT, healthy))
    assert found.findings == []


@pytest.mark.parametrize("make", [complex_values, tokens])
def test_a_partial_sum_of_complex_or_integer_tensors_passes(tmp_path: Path, make: Make) -> None:
    assert compare(rung(tmp_path, make, (Partial("tp"),), healthy)).findings == []


@pytest.mark.parametrize("make", [complex_values, tokens, mask])
def test_a_wrong_part_of_a_complex_integer_or_boolean_tensor_fails(
    tmp_path: Path, make: Make
) -> None:
    first = compare(rung(tmp_path, make, CUT, wrong)).findings[0]
    assert (first.verdict, first.where is not None and first.where.module) == ("fail", "odd")


def test_an_empty_tensor_of_another_shape_fails(tmp_path: Path) -> None:
    first = compare(rung(tmp_path, nothing, CUT, shorter)).findings[0]
    assert (first.verdict, first.check) == ("fail", "hole")
