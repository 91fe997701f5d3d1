"""Whether semantics return what the operator returns, in all its variants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from pytest_trainsafe.arithmetic.checks.running import (
    Entries,
    Operator,
    exactly,
    natively,
    on_numbers,
    operator,
    same_bits,
    tensors,
    works,
)
from pytest_trainsafe.arithmetic.doubles import Doubles
from pytest_trainsafe.arithmetic.errors import ExactError
from pytest_trainsafe.arithmetic.packing import rational
from pytest_trainsafe.arithmetic.residues import Residues
from pytest_trainsafe.arithmetic.table import Call
from pytest_trainsafe.compat.operators import schema_of

_CLOSE = 1e-9
#: Above this, a fraction may be chance.
_SIZE = 1 << 40


def disagreements(name: str, entries: Entries, example: Call, met: Counter[str]) -> Iterator[str]:
    """Where the semantics differ from torch: on doubles, and on residues where rational.

    `met` counts the semantics that were used.
    """
    run = operator(name)
    expected, _ = natively(run, example)
    doubles = Doubles()
    try:
        real, _ = on_numbers(run, example, doubles, entries, met)
        exact, _ = on_numbers(run, example, Residues(1, doubles.decisions.replay()), entries)
    except (ExactError, RuntimeError, TypeError, IndexError, ValueError) as error:
        yield f"{type(error).__name__}: {error}"
        return
    random = entries[name].random
    if not tensors(expected) and real != expected:
        yield f"returns {real}, not {expected}"
    for kind, results in (("doubles", real), ("residues", exact)):
        if len(tensors(results)) != len(tensors(expected)):
            yield f"{len(tensors(results))} tensors on {kind}, not {len(tensors(expected))}"
            return
        for number, (got, right) in enumerate(
            zip(tensors(results), tensors(expected), strict=True)
        ):
            floats = right.is_floating_point()
            dtype = torch.float64 if floats else right.dtype
            if (got.shape, got.dtype) != (right.shape, dtype):
                yield (
                    f"result {number} on {kind} is {got.dtype}{list(got.shape)}, "
                    f"not {dtype}{list(right.shape)}"
                )
            elif random:
                continue
            elif kind == "residues" and floats:
                yield from _irrational(number, got, right)
            elif not torch.allclose(
                got.double(), right.double(), rtol=_CLOSE, atol=_CLOSE, equal_nan=True
            ):
                yield f"result {number} on {kind} is {got.tolist()}, not {right.tolist()}"


def _irrational(number: int, got: torch.Tensor, right: torch.Tensor) -> Iterator[str]:
    """An exact result that is a simple fraction, but neither the right one nor its square."""
    for mine, real in zip(got.reshape(-1), right.reshape(-1).double().tolist(), strict=True):
        fraction = rational(mine, _SIZE)
        if fraction is not None and abs(float(fraction) - real) > _CLOSE * max(1, abs(real)):
            yield f"result {number} on residues has {fraction}, not {real}"
            return


def variant_disagreements(name: str, entries: Entries, example: Call) -> Iterator[str]:
    """Where a variant in place, with `out`, or foreach differs from the functional operator."""
    if entries[name].random or name.endswith("_"):
        return
    for label, run, changed in _variants(name, example):
        if not works(run, changed):
            continue
        try:
            expected, _ = exactly(operator(name), example, entries)
            result, given = exactly(run, changed, entries)
        except (ExactError, RuntimeError, TypeError) as error:
            yield f"{label}: {type(error).__name__}: {error}"
            continue
        if label == "foreach":
            expected = [expected, expected]
        if label == "in place":
            expected, result = _first(expected), given.args[0]
            if isinstance(result, torch.Tensor) and result.dtype != expected.dtype:
                continue  # A mask, written as zeros and ones.
        if label == "foreach in place":
            expected, result = [expected, expected], given.args[0]
        if not same_bits(result, expected):
            yield f"{label}: another result than the functional operator"


def _first(results: Any) -> Any:
    return results[0] if isinstance(results, tuple | list) else results


def _variants(name: str, example: Call) -> Iterator[tuple[str, Operator, Call]]:
    space, _, short = name.partition(".")
    operators = getattr(torch.ops, space)
    if hasattr(operators, short + "_"):
        yield "in place", getattr(operators, short + "_"), example
    packet = getattr(operators, short)
    for overload in packet.overloads():
        variant = getattr(packet, overload)
        outputs = [each.name for each in schema_of(variant).arguments if each.is_out]
        if outputs and works(packet, example):
            results = tensors(natively(packet, example)[0])
            if len(results) == len(outputs):
                empty = {
                    key: torch.zeros_like(each) for key, each in zip(outputs, results, strict=True)
                }
                yield f"out of {overload}", variant, Call(example.args, example.kwargs | empty)
    for suffix, label in (("", "foreach"), ("_", "foreach in place")):
        if hasattr(operators, f"_foreach_{short}{suffix}") and tensors(example.args):
            twice = tuple(
                [each, each.clone()] if isinstance(each, torch.Tensor) else each
                for each in example.args
            )
            yield (
                label,
                getattr(operators, f"_foreach_{short}{suffix}"),
                Call(twice, example.kwargs),
            )
