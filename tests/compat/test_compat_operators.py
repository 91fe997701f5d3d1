"""Schemas of operators, the leaves of structures, and torch's functions in C."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_trainsafe.compat import operators
from pytest_trainsafe.compat.private import lacking

TREE = {"a": [1, (2, None)], "b": 3}


def test_the_schema_says_what_an_operator_writes() -> None:
    schema = operators.schema_of(torch.ops.aten.add_.Tensor)
    assert schema.name == "aten::add_"
    assert schema.is_mutable
    written = [each.name for each in schema.arguments if each.alias_info is not None]
    assert written == ["self"]
    assert not operators.schema_of(torch.ops.aten.add.Tensor).is_mutable
    assert isinstance(torch.ops.aten.add.Tensor, operators.OpOverload)


def test_structures_are_taken_apart_and_put_together() -> None:
    leaves, form = operators.tree_flatten(TREE)
    assert leaves == operators.tree_leaves(TREE) == [1, 2, None, 3]
    assert operators.tree_unflatten(leaves, form) == TREE
    assert operators.tree_map(str, TREE) == {"a": ["1", ("2", "None")], "b": "3"}
    paths = operators.tree_flatten_with_path(TREE)[0]
    assert [value for _, value in paths] == leaves
    assert len({path for path, _ in paths}) == 4


def test_functions_in_c_stay_the_same_if_the_program_replaces_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = torch.topk
    monkeypatch.setattr(torch, "topk", print)
    assert operators.functions_in_c.topk == original
    monkeypatch.setattr(torch.Tensor, "topk", print)
    assert operators.TensorBase.topk is not print


def test_an_operator_is_dispatched_again_below_given_keys() -> None:
    x = torch.ones(2)
    keys: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    add = operators.redispatch_of(torch.ops.aten.add.Tensor)
    assert add(keys, x, x).tolist() == [2, 2]


def test_a_function_in_c_is_replaced_for_torch_nn_functional_and_restored() -> None:
    x, seen = torch.ones(4), []

    def make(original: Any) -> Any:
        def replaced(*args: Any) -> Any:
            seen.append(args[1:])
            return original(*args)

        return replaced

    with operators.replaced_in_functional("dropout", make):
        torch.nn.functional.dropout(x, 0.25)
    torch.nn.functional.dropout(x, 0.25)
    assert seen == [(0.25, True)]


def test_without_schemas_no_operator_is_known_to_write(without: Any) -> None:
    copy = without("operators", "torch._ops.OpOverload")
    schema = copy.schema_of(torch.ops.aten.add_.Tensor)
    assert (schema.name, schema.is_mutable, schema.arguments) == ("", False, ())
    assert not isinstance(torch.ops.aten.add.Tensor, copy.OpOverload)
    [why] = lacking()
    assert why.startswith("what an operator writes is not known: torch ")


def test_without_trees_a_structure_is_one_leaf(without: Any) -> None:
    names = ("tree_leaves", "tree_map", "tree_flatten", "tree_unflatten", "tree_flatten_with_path")
    copy = without("operators", *(f"torch.utils._pytree.{name}" for name in names))
    leaves, form = copy.tree_flatten(TREE)
    assert leaves == copy.tree_leaves(TREE) == [TREE]
    assert copy.tree_unflatten(leaves, form) == TREE
    assert copy.tree_map(len, TREE) == 2
    assert copy.tree_flatten_with_path(TREE)[0] == [((), TREE)]
    assert copy.SCHEMAS.available


def test_without_torch_vf_functions_are_not_replaced(without: Any) -> None:
    copy = without("operators", "torch._VF", "torch._C._VariableFunctions")
    with copy.replaced_in_functional("dropout", lambda original: pytest.fail("replaced")):
        torch.nn.functional.dropout(torch.ones(2), 0.5)
    assert copy.functions_in_c is torch
    assert len(lacking()) == 2


def test_an_operator_that_torch_defines_by_others_is_told_from_others(without: Any) -> None:
    assert operators.is_composite(torch.ops.aten.linear.default)
    assert not operators.is_composite(torch.ops.aten.mm.default)
    assert not without("operators").is_composite(torch.ops.aten.linear.default)
