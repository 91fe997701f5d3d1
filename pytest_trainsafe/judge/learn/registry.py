"""Loads relations by import path: the package's, and those that a project adds.

A project adds relations with the hook `pytest_trainsafe_relations`.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Mapping, Sequence

from pytest_trainsafe.errors import SweepError
from pytest_trainsafe.judge.learn.relation import Relation

_FOLDER = "pytest_trainsafe.judge.learn.relations"
BUILT_IN = (
    f"{_FOLDER}.consistent:Consistent",
    f"{_FOLDER}.agreement:Agreement",
    f"{_FOLDER}.membership:Membership",
    f"{_FOLDER}.contain:Contain",
    f"{_FOLDER}.within:Within",
    f"{_FOLDER}.sequence:CallSequence",
    f"{_FOLDER}.renewed:Renewed",
    f"{_FOLDER}.argument:Argument",
    f"{_FOLDER}.output:Output",
    f"{_FOLDER}.periodic:Periodic",
    f"{_FOLDER}.numeric:Numeric",
)

_PARTS = (
    "name",
    "several",
    "typed",
    "valid",
    "prior",
    "hypotheses",
    "examples",
    "checker",
    "needs",
    "explain",
    "weaker",
    "anywhere",
)


def relations(own: Sequence[str] = ()) -> Mapping[str, Relation]:
    """The relations by name: the package's, then the project's (`own`).

    Raises SweepError (a ValueError) for an import path that leads to no relation, and for two
    relations with the same name.
    """
    found: dict[str, Relation] = {}
    for path in dict.fromkeys((*BUILT_IN, *own)):
        relation = load_relation(path)
        if relation.name in found:
            raise SweepError(
                f"two relations have the name {relation.name!r}; give one of them another"
            )
        found[relation.name] = relation
    return found


def relation_paths(own: Sequence[str] = ()) -> list[str]:
    """The import paths of all relations, after a check that they lead to relations."""
    relations(own)
    return list(dict.fromkeys((*BUILT_IN, *own)))


@functools.cache
def load_relation(path: str) -> Relation:
    """The relation at an import path such as "our_tests.relations:LossFalls"."""
    try:
        made = pkgutil.resolve_name(path)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SweepError(
            f"pytest_trainsafe_relations gave {path!r}, which cannot be made: {error}. Give the "
            "import path of a class whose instances need no arguments"
        ) from error
    missing = [part for part in _PARTS if not hasattr(made, part)]
    if missing:
        raise SweepError(
            f"pytest_trainsafe_relations gave {path!r}, which has no {' and no '.join(missing)}; "
            "see pytest_trainsafe.judge.learn.relation.Relation"
        )
    relation: Relation = made
    return relation
