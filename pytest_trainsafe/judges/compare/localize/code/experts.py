"""Says that the tensors inside of experts are not declared local, if nothing outside is wrong.

Where ranks exchange tokens, these lie in an order in an expert that no single device has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pytest_trainsafe.core.layout import Owned
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace


def undeclared_experts(candidate: Trace, wrong: Sequence[TensorId | None]) -> str:
    """What to declare of the experts of which alone tensors are `wrong`; "" if others are, too.

    An expert is what holds parameters that only some ranks own, up to the last number in the path.
    """
    around: dict[str, None] = {}
    for rank in candidate.ranks:
        for id, event in rank.tensors.items():
            owned = any(isinstance(placement, Owned) for placement in event.layout)
            if id.kind == "param" and owned and (expert := _expert(id.module)):
                around[expert.rpartition(".")[0]] = None
    inside = ("activation", "activation_grad")
    modules = {id.module for id in wrong if id is not None and id.kind in inside}
    if not modules or any(id is None or id.kind not in inside for id in wrong):
        return ""
    if not around or not all(_expert(each).rpartition(".")[0] in around for each in modules):
        return ""
    names = {each.rpartition(".")[2] for each in around}
    lines = ", ".join(f"{json.dumps(f'{name}.*')}: {{output: {{local: [ep]}}}}" for name in names)
    return (
        "nothing but tensors inside of experts is wrong, where tokens that ranks of ep exchange "
        f"lie in an order that no single device has: declare `modules: {{{lines}}}`; these are "
        "then not compared, but the output of the layer is"
    )


def _expert(module: str) -> str:
    """The path of the expert that a module is, or is a part of; "" if no part is a number."""
    parts = module.split(".")
    last = max((number for number, part in enumerate(parts) if part.isdigit()), default=0)
    return ".".join(parts[: last + 1]) if last else ""
