"""Loads the relations of the package and of a project by their import paths.

A project adds relations with the hook `pytest_trainsafe_relations`.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Mapping, Sequence

from pytest_trainsafe.errors import SweepError
from pytest_trainsafe.judges.learn.relation import Relation

_FOLDER = "pytest_trainsafe.judges.learn.relations"
BUILT_IN = (
    f"{_FOLDER}.consistent:Consistent",
    f"{_FOLDER}.agreement:Agreement",
    f"{_FOLDER}.alike:Alike",
    f"{_FOLDER}.membership:Membership",
    f"{_FOLDER}.contain:Contain",
    f"{_FOLDER}.within:Within",
    f"{_FOLDER}.sequence:CallSequence",
    f"{_FOLDER}.renewed:Renewed",
    f"{_FOLDER}.argument:Argument",
    f"{_FOLDER}.output:Output",
    f"{_FOLDER}.periodic:Periodic",
    f"{_FOLDER}.numeric:Numeric",
    f"{_FOLDER}.setup:Setup",
    f"{_FOLDER}.conduct.mode:Mode",
    f"{_FOLDER}.conduct.context:Context",
    f"{_FOLDER}.conduct.slip:Slip",
    f"{_FOLDER}.conduct.graph:Graph",
    f"{_FOLDER}.conduct.noted:Noted",
)

#: The attributes that a relation must have.
_PARTS = (
    *Relation.__annotations__,
    *(name for name, value in vars(Relation).items() if callable(value) and name[0] != "_"),
)


def relations(own: Sequence[str] = ()) -> Mapping[str, Relation]:
    """The relations by name: those of the package, then those of the project.

    `own` has the import paths of the project's relations.  Raises SweepError (a ValueError) if an
    import path leads to no relation, or if two relations have the same name.
    """
    found: dict[str, Relation] = {}
    for path in dict.fromkeys((*BUILT_IN, *own)):
        relation = load_relation(path)
        if relation.name in found:
            raise SweepError(
                f"two relations have the name {relation.name!r}; give one of them another name"
            )
        found[relation.name] = relation
    return found


def relation_paths(own: Sequence[str] = ()) -> list[str]:
    """The import paths of all relations.  Raises SweepError as `relations` does."""
    relations(own)
    return list(dict.fromkeys((*BUILT_IN, *own)))


@functools.cache
def load_relation(path: str) -> Relation:
    """An instance of the relation at an import path such as "our_tests.relations:LossFalls".

    Raises SweepError if it cannot be created, or lacks an attribute of a Relation.
    """
    try:
        made = pkgutil.resolve_name(path)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SweepError(
            f"the hook pytest_trainsafe_relations returned {path!r}, which cannot be imported "
            f"or instantiated: {error}. Return the import path of a class that takes no arguments"
        ) from error
    missing = [part for part in _PARTS if not hasattr(made, part)]
    if missing:
        raise SweepError(
            f"the hook pytest_trainsafe_relations returned {path!r}, which has no "
            f"{' and no '.join(missing)}; return the import path of a class that has all "
            "attributes of pytest_trainsafe.judges.learn.relation.Relation"
        )
    relation: Relation = made
    return relation
