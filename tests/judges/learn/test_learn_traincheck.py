"""TrainCheck's invariants are imported if there is a counterpart, and else listed as left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.judges.learn.packs.pack import pack_text
from pytest_trainsafe.judges.learn.packs.read import PackError, parse_pack
from pytest_trainsafe.judges.learn.packs.traincheck import Imported, read_traincheck
from pytest_trainsafe.judges.learn.relation import Relation


def api(name: str, **more: Any) -> dict[str, Any]:
    return {"param_type": "APIParam", "api_full_name": name, **more}


def variable(attribute: str, **more: Any) -> dict[str, Any]:
    kind = {"param_type": "VarTypeParam", "var_type": "torch.nn.Parameter"}
    return {**kind, "attr_name": attribute, **more}


def clause(kind: str, field: str, *values: object) -> dict[str, Any]:
    found = {"type": kind, "prop_name": field, "additional_path": "None", "prop_dtype": "str"}
    return {**found, "values": values} if values else found


def line(relation: str, params: list[Any], *clauses: dict[str, Any]) -> str:
    parts = [{"clauses": list(clauses) or "Unconditional"}]
    data = {
        "text_description": "words",
        "relation": relation,
        "params": params,
        "precondition": {"group": {"inverted": False, "preconditions": parts}},
        "num_positive_examples": 7,
        "num_negative_examples": 2,
    }
    return json.dumps(data)


def read(tmp_path: Path, *lines: str) -> Imported:
    path = tmp_path / "invariants.json"
    path.write_text("\n".join(lines) + "\n")
    return read_traincheck(path)


STEP = api("torch.optim.adam.Adam.step")


def test_traincheck_relations_with_a_counterpart_are_imported(
    tmp_path: Path, relations: Mapping[str, Relation]
) -> None:
    zero = api("torch.optim.optimizer.Optimizer.zero_grad")
    found = read(
        tmp_path,
        line("APIContainRelation", [STEP, variable("data")]),
        line("APIContainRelation", [zero, variable("grad", pre_value="non_zero", post_value=None)]),
        line("FunctionCoverRelation", [zero, api("torch._tensor.Tensor.backward")]),
        line("FunctionLeadRelation", [api("torch._tensor.Tensor.backward"), STEP]),
        line(
            "ConsistencyRelation",
            [variable("data"), variable("data")],
            clause("unequal", "meta_vars.TP_RANK"),
            clause("constant", "attributes.tensor_model_parallel", False),
        ),
    )
    assert found.left_out == ()
    preconditions = {
        relations[each.claim.relation].explain(each.claim).sentence: str(each.precondition)
        for each in found.pack.invariants
    }
    backward = "between two calls of torch.Tensor.backward"
    assert preconditions == {
        "every call of torch.optim.*.step changes data of some torch.nn.Parameter": "always",
        "every call of torch.optim.*.zero_grad clears grad of some torch.nn.Parameter": "always",
        f"{backward}, torch.optim.*.zero_grad is called at least once": "always",
        f"{backward}, torch.optim.*.step is called at least once": "always",
        "data of torch.nn.Parameter is equal on the ranks": (
            "value.tensor_model_parallel is False and tp_rank differs"
        ),
    }
    assert {each.examples for each in found.pack.invariants} == {7}
    text = pack_text(found.pack, relations)
    assert parse_pack(text, "x", relations).invariants == found.pack.invariants


def test_the_stage_of_a_traincheck_precondition_becomes_the_phase(tmp_path: Path) -> None:
    stages = clause("constant", "meta_vars.stage", "evaluation", "testing")
    [only] = read(
        tmp_path, line("APIContainRelation", [STEP, variable("data")], stages)
    ).pack.invariants
    assert str(only.precondition) == "phase is 'evaluation'"


@pytest.mark.parametrize(
    ("relation", "params", "clauses", "reason"),
    [
        ("ThresholdRelation", [STEP], [], "has no counterpart"),
        ("APIContainRelation", [STEP, variable("weird")], [], "is not observed"),
        ("APIContainRelation", [api("f", arguments={"a": 1}), STEP], [], "with certain arguments"),
        (
            "APIContainRelation",
            [STEP, variable("data")],
            [clause("constant", "meta_vars.step", 3)],
            "reads 'meta_vars.step'",
        ),
    ],
)
def test_a_traincheck_invariant_without_a_counterpart_is_listed_with_the_reason(
    relation: str, params: list[Any], clauses: list[Any], reason: str, tmp_path: Path
) -> None:
    found = read(tmp_path, line(relation, params, *clauses))
    assert found.pack.invariants == ()
    [(number, words, why)] = found.left_out
    assert (number, words) == (1, "words")
    assert reason in why


@pytest.mark.parametrize("text", ["[1]", "{", '{"relation": 3}', '{"a": 1}'])
def test_a_line_that_is_no_traincheck_invariant_is_refused_with_its_number(
    text: str, tmp_path: Path
) -> None:
    good = line("APIContainRelation", [STEP, variable("data")])
    with pytest.raises(PackError, match=r"invariants\.json: line 2: "):
        read(tmp_path, good, text)
