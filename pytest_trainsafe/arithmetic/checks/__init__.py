"""Tests of semantics that follow from the table itself: each operator's examples are run.

running     an operator natively, on Doubles and on Residues
agreement   values, shapes and dtypes against torch; in-place, out and foreach variants
dependence  what changes an operator's result changes the exact one
alteration  altered semantics, which the checks must find
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pytest_trainsafe.arithmetic.checks.agreement import disagreements, variant_disagreements
from pytest_trainsafe.arithmetic.checks.dependence import losses
from pytest_trainsafe.arithmetic.table import Draw, Semantics, table

__all__ = ["check_semantics"]


def check_semantics(name: str, semantics: Mapping[str, Semantics] | None = None) -> list[str]:
    """What is wrong with the semantics of an operator, such as "aten.mul", by its examples.

    An empty list says: on each example, the semantics agree with the operator in float64 to 1e-9,
    rational results are exact, shapes and dtypes are the operator's, variants in place, with `out`
    and foreach agree with the functional operator, and each element and float argument that
    changes the operator's result changes the exact result.
    """
    entries = table() if semantics is None else semantics
    if name not in entries:
        return [f"{name} has no semantics"]
    met: Counter[str] = Counter()
    examples = list(entries[name].examples(Draw(len(name))))
    for number, example in enumerate(examples):
        found = [
            *disagreements(name, entries, example, met),
            *variant_disagreements(name, entries, example),
            *losses(name, entries, example),
        ]
        if found:
            return [f"{name}, example {number}: {each}" for each in found]
    if examples and not met[name]:
        return [f"{name} is never met: torch decomposes it into other operators"]
    return []
