"""Metamorphic relations: changes of a program's Run under which it must train the same.

relation   the contract: what a relation changes, and how the two Runs' tensors correspond
built_in   the relations of this package
views      how tensors of one Run are put in the terms of the other
offers     which relations a program offers

Imported as `from pytest_trainsafe import relations`.  Imports no torch and no
msgspec: programs import it when tests are collected.
"""

from pytest_trainsafe.sweep.relations.built_in import (
    LossScale,
    Order,
    Padding,
    Recompute,
    Repeat,
    Split,
    Vocabulary,
)
from pytest_trainsafe.sweep.relations.offers import hold
from pytest_trainsafe.sweep.relations.relation import KEEP, Change, Relation, Setting, View

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
