"""Synthetic traces of a training that does not share a parameter as its reference does."""

from __future__ import annotations

import torch

from pytest_trainsafe.core.tensor_id import INITIAL
from tests.support.compare.traces import MICROBATCHES, Record, draw, parameter, training

#: The parameter that the reference shares with `norm.weight`.
HEAD = "fc2.head"

SHAPE = (8,)


def own_term(step: int, microbatch: int | None) -> torch.Tensor:
    """The gradient of HEAD in one micro-batch, or in a whole step."""
    if microbatch is not None:
        return draw(f"head {step} {microbatch}", SHAPE)
    return sum((own_term(step, i) for i in range(MICROBATCHES)), torch.zeros(SHAPE).double())


def with_head(dtype: str = "float64") -> list[Record]:
    """The tensors of a training with one more parameter than the reference has."""
    records = training(dtype)
    found = [Record(parameter("param", HEAD, INITIAL), draw("head", SHAPE))]
    for record in records:
        found.append(record)
        id = record.id
        if id.path == "norm.weight" and id.kind in ("param_grad", "main_grad"):
            own = parameter(id.kind, HEAD, id.step, id.microbatch)
            found.append(Record(own, own_term(id.step, id.microbatch)))
    return found


def unshared(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """What a program records that does not share HEAD: the other gradient lacks that of HEAD."""
    id = record.id
    if id.path == "norm.weight" and id.kind in ("param_grad", "main_grad"):
        return part - own_term(id.step, id.microbatch).to(part.dtype)
    return part
