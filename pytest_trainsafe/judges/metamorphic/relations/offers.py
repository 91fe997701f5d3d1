"""Declares the metamorphic relations of a program (`hold`), and finds them by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pytest_trainsafe.core.axes import AXES
from pytest_trainsafe.core.usage import listing, nearest, shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.judges.metamorphic.relations.relation import Relation
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.sweep.traits import give_traits, traits_of

_Function = TypeVar("_Function", bound=Callable[..., Any])


def hold(*relations: Relation) -> Callable[[_Function], _Function]:
    """Declares that relations hold for a program: `@hold(Split(), Order())`.

    Tests refer to these relations by their names.  Raises ArgumentTypeError for anything that is
    not a relation, and ArgumentError if two relations have the same name, or if one acts through an
    argument that the program does not have.
    """
    given: tuple[object, ...] = relations
    odd = next((each for each in given if not isinstance(each, Relation)), None)
    if not given or odd is not None:
        raise ArgumentTypeError(
            "@hold takes relations, such as @hold(relations.Split(), relations.Order()), not "
            f"{shown(odd) if given else 'nothing'}"
        )
    names = [_complete(relation).name for relation in relations]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArgumentError(
            f"@hold was given two relations with the name {twice!r}, but tests refer to a relation "
            "by its name; keep only one of them in @hold(...), and pass the other one as an object "
            "in a test: assert_same_by(relation, candidate_trace)"
        )

    def decorate(function: _Function) -> _Function:
        own = inspect.signature(function).parameters
        named = [*own][1:]  # the first parameter is the context
        open_ended = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in own.values())
        axes = traits_of(function).mesh.names
        for relation in () if open_ended else relations:
            _require_arguments(relation, "@hold", function.__name__, named, axes)
        return give_traits(function, replace(traits_of(function), relations=relations))

    return decorate


def find_relations(program: Program, given: object, caller: str) -> tuple[Relation, ...]:
    """The relations that a test names, or gives as objects, in a list.

    Raises ArgumentTypeError if `given` is not a list, and the errors of `find_relation`.
    """
    if not isinstance(given, (list, tuple)):
        raise ArgumentTypeError(
            f"{caller} was given {shown(given)} as relations; relations must be a list of "
            "relations, or of names of relations that the program offers"
        )
    return tuple(find_relation(program, each, caller) for each in given)


def find_relation(program: Program, given: object, caller: str) -> Relation:
    """The relation that a test names, or gives as an object.

    Raises ArgumentTypeError for anything else, and ArgumentError for a name that the program does
    not offer; their messages name `caller`, the function that the test called.
    """
    if isinstance(given, Relation):
        if program.script is None and not program.open_ended:
            own = list(program.parameters)
            _require_arguments(given, caller, program.name, own, program.traits.mesh.names)
        return _complete(given)
    offered = {relation.name: relation for relation in program.traits.relations}
    if not isinstance(given, str):
        raise ArgumentTypeError(
            f"{caller} was given {shown(given)} as a relation; pass the name of a relation "
            f"that the program offers ({listing(offered) or 'none'}), or an object such as "
            "relations.Order()"
        )
    if given not in offered:
        raise ArgumentError(
            f"{program.name} offers no relation {shown(given)}{nearest(given, offered)}; it offers "
            f"{listing(offered) or 'none'}. Declare the relations that hold for the program with "
            "@relations.hold(...), or pass an object, such as relations.Order()"
        )
    found: Relation = offered[given]
    return found


def _require_arguments(
    relation: Relation, caller: str, program: str, own: Sequence[str], axes: Collection[str]
) -> None:
    """Raises ArgumentError if a relation acts through an argument that a program does not have.

    `own` has the names of the program's parameters, and `axes` those of its mesh axes.
    """
    for field in relation.acts_through:
        name = getattr(relation, field)
        if name not in {*own, *AXES, *axes}:
            kind = type(relation).__name__
            raise ArgumentError(
                f"{caller} was given {kind}({field}={shown(name)}) for {program}, which has no "
                f"parameter {shown(name)}{nearest(str(name), own)}; its parameters: "
                f"{listing(own) or 'none'}. Give the name of the parameter, as in "
                f"{kind}({field}={[*own, 'name'][0]!r})"
            )


def _complete(relation: Relation) -> Relation:
    """Returns `relation`; raises ArgumentTypeError if its class lacks a text for the report."""
    for name in ("name", "what", "suspects"):
        if not isinstance(getattr(relation, name, None), str):
            raise ArgumentTypeError(
                f"{type(relation).__name__} has no `{name}`; the class of a relation must define "
                "the texts `name`, `what` and `suspects` (see relations.Relation)"
            )
    return relation
