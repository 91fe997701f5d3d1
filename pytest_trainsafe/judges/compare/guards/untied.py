"""Finds a parameter without a counterpart in the reference that explains a wrong tensor.

If a candidate does not share a weight that the reference shares, it has a parameter more.  That
parameter is compared with nothing, but its gradient is missing in the gradient of the weight, and
the module that holds it computes other values.  Called by `leading` and by
`judges.compare.localize`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import msgspec
import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.sketched import is_whole
from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.explain.part_ratio import reference_of
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace

#: The kinds of gradients of parameters.
_GRADIENTS = frozenset({"param_grad", "unclipped_grad", "main_grad"})

#: How many parameters without a counterpart are tried together.
MAX_TOGETHER = 3


def untied(rung: RungTraces, finding: Finding) -> Pattern | None:
    """The pattern of a wrong tensor that parameters without a counterpart explain."""
    where = finding.where
    if where is None:
        return None
    if where.kind in _GRADIENTS:
        own = without_shares(rung, where)
        if not own:
            return None
        names, it = _listed(own), "it" if len(own) == 1 else "they"
        text = (
            f"the value plus the gradient of {names} equals the reference; {it} "
            f"{_have(own)} no counterpart in the reference"
        )
        cause = f"the model does not share {where.path} with {names}, as the reference does"
        return Pattern("untied", text, cause=cause, short=f"not shared with {names}")
    vague = finding.pattern is None or finding.pattern.name == "confined"
    own = [id for id in extra_parameters(rung) if id.module == where.module]
    if where.kind != "activation" or not vague or not own:
        return None
    names = _listed(own)
    text = f"this module holds {names}, which {_have(own)} no counterpart in the reference"
    cause = (
        f"the model does not share {names} with a parameter of another module, as the reference "
        "does, or gives it another name"
    )
    return Pattern("untied", text, cause=cause, short=f"{names} not shared with another module")


def without_shares(rung: RungTraces, where: TensorId) -> list[TensorId]:
    """The parameters whose gradients a wrong gradient lacks, which the reference does not have.

    `where` is a gradient of a parameter.  The result is empty if no such gradients, added to this
    one, give the reference's.
    """
    found = reference_of(rung, where)
    value = _values(rung.candidate, where)
    if found is None or value is None or value.shape != found[0].shape:
        return []
    reference, allowed = found
    wrong = WrongTensor(value, reference, [], rung.candidate.sizes, allowed, numbers=rung.numbers)
    terms = {}
    for id in extra_parameters(rung):
        term = _values(
            rung.candidate, msgspec.structs.replace(where, module=id.module, name=id.name)
        )
        if term is not None and term.shape == value.shape:
            terms[id] = term
    for count in range(1, min(len(terms), MAX_TOGETHER) + 1):
        for ids in itertools.combinations(terms, count):
            if wrong.explains(functools.reduce(rung.numbers.add, (terms[id] for id in ids), value)):
                return [*ids]
    return []


def extra_parameters(rung: RungTraces) -> list[TensorId]:
    """The candidate's parameters, as of the start, that the reference does not have."""
    known = {id.path for id in rung.reference.ids() if id.kind == "param"}
    if not known:
        return []
    return [
        id
        for id in rung.candidate.ids()
        if id.kind == "param" and id.step == INITIAL and id.path not in known
    ]


def _values(trace: Trace, id: TensorId) -> torch.Tensor | None:
    """A logical tensor in float64; None if it is not recorded whole, or its parts do not fit."""
    if not trace.holders(id) or not is_whole(trace, id):
        return None
    tensor = logical_tensor(trace, id).whole
    if tensor is None or not tensor.is_floating_point():
        return None
    return tensor.to(torch.float64)


def _listed(ids: Sequence[TensorId]) -> str:
    return " and ".join(id.path for id in ids)


def _have(ids: Sequence[TensorId]) -> str:
    return "has" if len(ids) == 1 else "have"
