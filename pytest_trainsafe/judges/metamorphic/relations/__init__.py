"""Metamorphic relations: changes of a program's Run under which it must train the same.

relation   the interface: what a relation changes, and how the two Runs' tensors correspond
built_in   the relations of this package
views      how the recorded tensors of one Run are turned into those of the other
offers     `hold`, with which a program declares relations, and the search for them by name

Imported as `from pytest_trainsafe import relations`.  Imports no torch and no
msgspec: programs import it when tests are collected.
"""

from pytest_trainsafe.judges.metamorphic.relations.built_in import (
    LossScale,
    Order,
    Padding,
    Recompute,
    Repeat,
    Split,
    Vocabulary,
)
from pytest_trainsafe.judges.metamorphic.relations.offers import hold
from pytest_trainsafe.judges.metamorphic.relations.relation import (
    KEEP,
    Change,
    Relation,
    Setting,
    View,
)

__all__ = [
    "KEEP",
    "Change",
    "LossScale",
    "Order",
    "Padding",
    "Recompute",
    "Relation",
    "Repeat",
    "Setting",
    "Split",
    "View",
    "Vocabulary",
    "hold",
]
