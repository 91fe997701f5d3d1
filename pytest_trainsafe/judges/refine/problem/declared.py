"""The relations that a user declares, as a YAML file or a mapping.

mesh: {tp: 2}                         # without it, one axis "ranks"
groups: {"12": tp}                    # process groups by name: an axis, several, or lists
inputs:
  primals_1: concat 0
  primals_2, primals_3: replica
  arg2_1: concat 0 of arg2_1, arg5_1
  primals_17 .. primals_22: replica
outputs:
  div_2: replica
constants: {_tensor_constant0: 0}     # scalars whose value the text does not hold
below: {primals_18: 100}              # bounds of integer inputs
propose: true                         # relations of the other inputs, from names and shapes
assume: [u0 % 4 == 0]                 # of symbolic sizes (`valuations.py`)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pytest_trainsafe.core.untrusted import BadFileError, read_file, shown
from pytest_trainsafe.judges.refine.errors import InputRelationError
from pytest_trainsafe.judges.refine.graphs.graph import Graph
from pytest_trainsafe.judges.refine.mesh import RankMesh
from pytest_trainsafe.judges.refine.problem.problem import Problem
from pytest_trainsafe.judges.refine.problem.propose import proposed
from pytest_trainsafe.judges.refine.problem.valuations import KEYS
from pytest_trainsafe.judges.refine.relations.parse import parse_relation
from pytest_trainsafe.judges.refine.relations.relation import Relation

MAX_BYTES = 4 << 20
_KEYS = ("mesh", "groups", "inputs", "outputs", "constants", "below", "propose", "partial", *KEYS)
_RANGE = re.compile(r"(.*?)(\d{1,6}) ?\.\. ?(.*?)(\d{1,6})")

#: The most names of one range.
_LONGEST = 10_000

Declaration = Mapping[str, Any]


def read_declaration(path: Path | str) -> Declaration:
    """The content of a YAML file.  Raises InputRelationError if it is no mapping."""
    try:
        text = read_file(Path(path), max_bytes=MAX_BYTES).decode()
        found = yaml.safe_load(text)
    except (BadFileError, OSError) as error:
        raise InputRelationError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InputRelationError(f"{path} is no YAML: {shown(str(error))}") from None
    if not isinstance(found, dict):
        raise InputRelationError(f"{path} is no mapping with the keys {', '.join(_KEYS)}")
    return found


def stated_problem(
    sequential: Graph, ranks: Sequence[Graph], declaration: Declaration | None
) -> Problem:
    """The problem that graphs and a declaration make; None proposes all relations of inputs."""
    declared = {"propose": True} if declaration is None else declaration
    unknown = [key for key in declared if key not in _KEYS]
    if unknown:
        raise InputRelationError(
            f"a relation has no key {shown(unknown[0])}; it has {', '.join(_KEYS)}"
        )
    mesh = _mesh(declared, len(ranks))
    inputs = _relations(declared, "inputs", mesh)
    if declared.get("propose"):
        missing = [node for node in sequential.inputs if node.name not in inputs]
        inputs |= proposed(missing, ranks, mesh)
    return Problem(
        sequential,
        ranks,
        mesh,
        inputs,
        _relations(declared, "outputs", mesh),
        {name: _number(name, value) for name, value in _mapping(declared, "constants").items()},
        {name: _bound(name, value) for name, value in _mapping(declared, "below").items()},
        declared.get("partial") is True,
    )


def _mapping(declared: Declaration, key: str) -> dict[str, Any]:
    found = declared.get(key)
    if found is None:
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(each, str) for each in found):
        raise InputRelationError(f"{key} is {shown(found)}; give a mapping from names")
    return dict(found)


def _mesh(declared: Declaration, count: int) -> RankMesh:
    axes = _mapping(declared, "mesh") or {"ranks": count}
    groups = {name: _group(name, value) for name, value in _mapping(declared, "groups").items()}
    return RankMesh(axes, groups)


def _group(name: str, value: object) -> tuple[str, ...] | tuple[tuple[int, ...], ...]:
    parts = [value] if isinstance(value, str) else value
    if isinstance(parts, list | tuple) and parts:
        if all(isinstance(each, str) for each in parts):
            return tuple(parts)
        if all(isinstance(each, list | tuple) for each in parts):
            ranks = [[rank for rank in each if type(rank) is int] for each in parts]
            if [len(each) for each in ranks] == [len(each) for each in parts]:
                return tuple(map(tuple, ranks))
    raise InputRelationError(
        f"group {shown(name)} is {shown(value)}; give an axis, a list of axes, or lists of ranks"
    )


def _relations(declared: Declaration, key: str, mesh: RankMesh) -> dict[str, Relation]:
    found: dict[str, Relation] = {}
    for names, text in _mapping(declared, key).items():
        if not isinstance(text, str):
            raise InputRelationError(
                f"{key} {shown(names)}: {shown(text)} is not a relation's text"
            )
        for name in _names(names):
            if name in found:
                raise InputRelationError(f"{key} has {shown(name)} twice")
            found[name] = parse_relation(text, name, mesh.axes)
    return found


def _names(text: str) -> list[str]:
    """The names in a list with commas and ranges, such as "x_1, x_3 .. x_7"."""
    found: list[str] = []
    for part in (each.strip() for each in text.split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            found.append(part)
            continue
        first, low, last, high = match.groups()
        if first != last or not 0 <= int(high) - int(low) < _LONGEST:
            raise InputRelationError(f"{shown(part)} is no range of names, such as x_3 .. x_7")
        found += [f"{first}{number}" for number in range(int(low), int(high) + 1)]
    return found


def _number(name: str, value: object) -> float:
    if isinstance(value, int | float):
        return value
    raise InputRelationError(f"the constant {shown(name)} is {shown(value)}; give a number")


def _bound(name: str, value: object) -> int:
    if type(value) is int and value > 0:
        return value
    raise InputRelationError(f"the bound of {shown(name)} is {shown(value)}; give an integer > 0")
