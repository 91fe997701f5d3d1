"""Reads invariants that TrainCheck inferred (JSON lines, as its release 0.2.0 writes them).

A TrainCheck invariant that a relation of this package can express is imported.  The others are
listed with the reason.  Imported invariants count as learned from one program, since the file does
not say from how many programs TrainCheck inferred them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED, read_file
from pytest_trainsafe.core.usage import excerpt, shown
from pytest_trainsafe.judges.learn.conditions import ALWAYS, Condition, Precondition
from pytest_trainsafe.judges.learn.invariant import Hypothesis, Invariant, Support, hypothesis
from pytest_trainsafe.judges.learn.names import family
from pytest_trainsafe.judges.learn.packs.pack import Pack
from pytest_trainsafe.judges.learn.packs.read import MAX_BYTES, MAX_INVARIANTS, PackError

#: Patterns of torch's internal modules in names, with the public modules that replace them.
_PRIVATE = (
    (re.compile(r"^torch\.nn\.modules\.\w+\."), "torch.nn."),
    (re.compile(r"^torch\.nn\.parameter\."), "torch.nn."),
    (re.compile(r"^torch\.optim\.optimizer\."), "torch.optim."),
    (re.compile(r"^torch\.optim\.(?!lr_scheduler\.)[a-z_0-9]+\.(?=[A-Z])"), "torch.optim."),
    (re.compile(r"^torch\._tensor\."), "torch."),
    (re.compile(r"^torch\.utils\.data\.\w+\.(?=[A-Z])"), "torch.utils.data."),
    (re.compile(r"^torch\.distributed\.distributed_c10d\."), "torch.distributed."),
    (re.compile(r"^torch\.nn\.utils\.clip_grad\."), "torch.nn.utils."),
)

#: The phases that correspond to each of TrainCheck's stages.
_PHASES = {
    "training": ("data", "forward", "recompute", "backward", "optimizer"),
    "evaluation": ("evaluation",),
    "testing": ("evaluation",),
    "inference": ("evaluation",),
    "init": ("init",),
    "checkpointing": ("save", "load"),
}
_MAX_SCENARIOS = 64

#: Values with which TrainCheck describes a missing or zero state.
_EMPTY = {None, "None", 0}


class _Cannot(Exception):
    """Raised with the reason why an invariant cannot be imported."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The imported invariants as a Pack, and the lines of the file that were not imported.

    `left_out` has the number, the description and the reason of each line that was not imported.
    """

    pack: Pack
    left_out: tuple[tuple[int, str, str], ...]


def read_traincheck(path: Path, program: str = "traincheck") -> Imported:
    """Import the invariants of a file.  Raises PackError if TrainCheck did not write it.

    `program` is the name of the program that the pack lists as evidence.
    """
    try:
        text = read_file(path, max_bytes=MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise PackError(f"{path}: the file is not text in UTF-8: {error.reason}") from error
    except OSError as error:
        raise PackError(
            f"{excerpt(str(path), 500)}: the file cannot be read: {excerpt(str(error.strerror))}"
        ) from error
    found: dict[Hypothesis, Invariant] = {}
    left_out: list[tuple[int, str, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        if number > MAX_INVARIANTS:
            raise PackError(
                f"{path}: line {number}: there are more than {MAX_INVARIANTS} lines; divide them "
                "among several files, and import each"
            )
        data = _line(path, number, line)
        try:
            invariant = _invariant(data, program)
            if invariant.claim in found:
                raise _Cannot("an earlier line was imported as the same claim")
            found[invariant.claim] = invariant
        except _Cannot as reason:
            text_of = data.get("text_description")
            words = excerpt(text_of, 200) if isinstance(text_of, str) else ""
            left_out.append((number, words, str(reason)))
    invariants = sorted(found.values(), key=lambda each: each.claim.order)
    pack = Pack(path.stem, tuple(invariants), {program: {"source": "traincheck"}})
    return Imported(pack, tuple(left_out))


def _line(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        data = msgspec.json.decode(line, type=dict[str, Any])
    except (*MALFORMED, msgspec.ValidationError) as error:
        raise PackError(
            f"{excerpt(str(path), 500)}: line {number}: not a JSON object: {excerpt(str(error))}"
        ) from None
    if not isinstance(data.get("relation"), str) or not isinstance(data.get("params"), list):
        raise PackError(
            f"{excerpt(str(path), 500)}: line {number}: no `relation` and `params`; give a file "
            "that TrainCheck's inference wrote"
        )
    return data


def _invariant(data: Mapping[str, Any], program: str) -> Invariant:
    claim = _claim(data["relation"], [each for each in data["params"] if isinstance(each, dict)])
    examples = data.get("num_positive_examples")
    count = examples if isinstance(examples, int) and 0 < examples < 2**53 else 1
    precondition = _precondition(data.get("precondition"))
    return Invariant(claim, precondition, (Support(program, (("", count),)),))


def _claim(relation: str, params: list[dict[str, Any]]) -> Hypothesis:
    kinds = [each.get("param_type") for each in params]
    if relation == "APIContainRelation" and len(params) == 2 and kinds[0] == "APIParam":
        outer, inner = _api(params[0]), params[1]
        if kinds[1] == "APIParam":
            return hypothesis("contain", api=outer, inner=_api(inner))
        name, attribute = _variable(inner)
        change = _change(inner)
        return hypothesis("contain", api=outer, variable=name, attribute=attribute, change=change)
    if relation in ("FunctionCoverRelation", "FunctionLeadRelation") and kinds == ["APIParam"] * 2:
        first, second = _api(params[0]), _api(params[1])
        if relation == "FunctionCoverRelation":
            first, second = second, first
        return hypothesis("sequence", form="between", api=first, inner=second)
    if relation == "ConsistencyRelation" and len(params) == 2:
        one, other = _variable(params[0]), _variable(params[1])
        if one != other:
            raise _Cannot(
                "the invariant compares two different variables; only a comparison of one variable "
                "on different ranks can be imported"
            )
        return hypothesis("consistent", variable=one[0], attribute=one[1])
    raise _Cannot(
        f"the relation {shown(relation)} with parameters of the types {shown(kinds)} has no "
        "counterpart in pytest-trainsafe"
    )


def _api(param: Mapping[str, Any]) -> str:
    name = param.get("api_full_name")
    if param.get("param_type") != "APIParam" or not isinstance(name, str) or len(name) > 300:
        raise _Cannot(
            "a parameter of the invariant is not the name of an API (`api_full_name` with at most "
            "300 characters)"
        )
    if param.get("arguments") or param.get("exception"):
        raise _Cannot(
            f"the invariant is only about calls of {shown(name)} with certain arguments or with a "
            "certain exception; such a restriction cannot be imported"
        )
    return family(_public(name))[0]


def _variable(param: Mapping[str, Any]) -> tuple[str, str]:
    name, attribute = param.get("var_type"), param.get("attr_name")
    if param.get("param_type") not in ("VarTypeParam", "VarNameParam"):
        raise _Cannot(
            "a parameter of the invariant is not a variable (VarTypeParam or VarNameParam)"
        )
    if not isinstance(name, str) or not isinstance(attribute, str) or len(name + attribute) > 300:
        raise _Cannot(
            "a variable of the invariant has no `var_type` or no `attr_name`, or the two have more "
            "than 300 characters"
        )
    if "var_name" in param:
        raise _Cannot(
            f"the invariant is about the variable {shown(param['var_name'])} of one model; only "
            "invariants about all variables of a type can be imported"
        )
    if "const_value" in param:
        raise _Cannot(
            f"the invariant is only about a variable with the value {shown(param['const_value'])}; "
            "such a restriction cannot be imported"
        )
    if _public(name) != "torch.nn.Parameter" or attribute not in ("data", "grad"):
        raise _Cannot(
            f"{shown(attribute)} of {shown(name)} is not observed; only invariants on `data` and "
            "`grad` of torch.nn.Parameter can be imported"
        )
    return "torch.nn.Parameter", attribute


def _change(param: Mapping[str, Any]) -> str:
    """The kind of change from the value `pre_value` to `post_value` of a TrainCheck parameter.

    "set" if only `pre_value` is empty, "cleared" if only `post_value` is empty, else "any".  Empty
    values are None, zero, and a value that is not given.
    """
    if "pre_value" not in param and "post_value" not in param:
        return "any"
    before, after = (_is_empty(param.get(name)) for name in ("pre_value", "post_value"))
    if before:
        return "any" if after else "set"
    return "cleared" if after else "any"


def _is_empty(value: object) -> bool:
    return not isinstance(value, (list, dict)) and value in _EMPTY


def _public(name: str) -> str:
    for pattern, public in _PRIVATE:
        name = pattern.sub(public, name)
    return name


def _precondition(data: object) -> Precondition:
    """The precondition of an invariant.  Raises _Cannot if it cannot be imported.

    TrainCheck gives one precondition for each group of records; at most one of them may have
    conditions.
    """
    if not isinstance(data, dict) or not data:
        raise _Cannot("the invariant has no precondition")
    groups = [each for each in map(_group, data.values()) if each != ALWAYS]
    if len(groups) > 1:
        raise _Cannot(
            "the invariant has conditions for more than one group of records; only conditions for "
            "one group can be imported"
        )
    return groups[0] if groups else ALWAYS


def _group(data: object) -> Precondition:
    if not isinstance(data, dict) or data.get("inverted") is not False:
        raise _Cannot(
            "the precondition is inverted (`inverted` is not false); only preconditions that are "
            "not inverted can be imported"
        )
    parts: list[tuple[Condition, ...]] = []
    every = data.get("preconditions")
    for part in every if isinstance(every, list) else []:
        clauses = part.get("clauses") if isinstance(part, dict) else None
        if clauses == "Unconditional":
            return ALWAYS
        if not isinstance(clauses, list):
            raise _Cannot("a part of the precondition has no list of `clauses`")
        choices = [_clause(clause) for clause in clauses if isinstance(clause, dict)]
        for chosen in itertools.islice(itertools.product(*choices), _MAX_SCENARIOS + 1):
            parts.append(tuple(sorted(set(chosen), key=lambda each: each.order)))
        if len(parts) > _MAX_SCENARIOS:
            raise _Cannot(
                f"the precondition of the invariant has more than {_MAX_SCENARIOS} alternatives "
                f'joined by "or"; at most {_MAX_SCENARIOS} can be imported'
            )
    if not parts:
        raise _Cannot("the precondition is empty")
    return Precondition(tuple(dict.fromkeys(parts)))


def _clause(clause: Mapping[str, Any]) -> list[Condition]:
    """The Conditions of this package that a TrainCheck clause (a dict) stands for.

    The clause holds if at least one of them holds.  Raises _Cannot if it cannot be imported.
    """
    kind, field = clause.get("type"), clause.get("prop_name")
    values = clause.get("values")
    if not isinstance(field, str) or clause.get("additional_path") not in (None, "None"):
        raise _Cannot(
            "a clause of the precondition has no `prop_name`, or it has an `additional_path`; only "
            "clauses with a `prop_name` and without an `additional_path` can be imported"
        )
    if field == "meta_vars.stage" and kind == "constant" and isinstance(values, list):
        phases = [phase for value in values for phase in _PHASES.get(str(value), ("",))]
        if not phases or "" in phases:
            raise _Cannot(f"the stages {shown(values)} have no counterpart in pytest-trainsafe")
        return [Condition("constant", "phase", phase) for phase in phases]
    name = _field(field)
    if kind == "constant" and isinstance(values, list) and values:
        if not all(isinstance(value, bool) for value in values):
            raise _Cannot(
                f"the precondition compares {shown(field)} with {shown(values)}; only comparisons "
                "with true or false can be imported"
            )
        return [Condition("constant", name, value) for value in values]
    if kind == "consistent":
        return [Condition("consistent", name)]
    if kind == "unequal":
        return [Condition("unequal", name)]
    if kind == "exist":
        return [Condition("exist", name)]
    raise _Cannot(f"the precondition has a clause of the unknown kind {shown(kind)}")


def _field(field: str) -> str:
    """The name that this package uses for a field of records on which TrainCheck has a condition.

    For example "dp_rank" for "meta_vars.DP_RANK".  Raises _Cannot if there is none.
    """
    axis = re.fullmatch(r"meta_vars\.(\w+)_RANK", field)
    if axis is not None:
        return f"{axis[1].lower()}_rank"
    attribute = re.fullmatch(r"attributes\.(requires_grad|tensor_model_parallel)", field)
    if attribute is not None:
        return f"value.{attribute[1]}"
    raise _Cannot(
        f"the precondition reads {shown(field)}, which has no counterpart in pytest-trainsafe"
    )
