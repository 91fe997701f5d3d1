"""Suggested annotations are short, and match the intended modules and parameters only."""

from __future__ import annotations

import pytest

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.core.layout import Layout, Partial, Shard, ZigZag
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.declarations.suggest import (
    MissingLayout,
    cp_order,
    inexpressible,
    patterns,
    wanted,
)

LAYERS = [f"decoder.layers.{i}.{name}" for i in range(12) for name in ("fc1", "fc2", "norm")]
EVERY = ["", "decoder", *(f"decoder.layers.{i}" for i in range(12)), *LAYERS, "norm", "head.fc1"]


def members(end: str) -> list[str]:
    return [name for name in EVERY if name.startswith("decoder.layers.") and name.endswith(end)]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (members("fc2"), ["fc2"]),
        (members("fc1"), ["layers.#.fc1"]),
        ([*members("fc1"), "head.fc1"], ["fc1"]),
        ([f"decoder.layers.{i}" for i in range(12)], ["layers.#"]),
        (["decoder.layers.3.fc2"], ["decoder.layers.3.fc2"]),
        ([""], [""]),
        (["norm"], ["norm"]),
    ],
)
def test_patterns_are_the_shortest_suffixes_that_match_no_other(
    wanted: list[str], expected: list[str]
) -> None:
    assert patterns(wanted, EVERY) == expected


def need(name: str, added: Layout, known: Layout = (), source: str = "default", **fields: str):
    section, place = fields.get("section", "modules"), fields.get("place", "output")
    return MissingLayout(section, name, place, known, added, source, 3)


CP = (ZigZag(1, "cp"),)


def test_the_most_frequent_layout_gets_the_pattern_for_all_modules_and_comes_first() -> None:
    sources = dict.fromkeys(["a", "b", "c", "l.0.fc", "l.1.fc"], "default")
    needs = [need(name, CP) for name in "abc"]
    needs += [need(f"l.{i}.fc", (*CP, Shard(2, "tp"))) for i in range(2)]
    assert wanted(needs, sources, (), order="zigzag", sp=False) == {
        "cp_order": "zigzag",
        "modules": {
            "*": {"output": {"cp_dim": 1}},
            "fc": {"output": {"cp_dim": 1, "tp_dim": -1}},
        },
    }


def test_no_pattern_for_all_modules_is_suggested_if_one_module_already_fits() -> None:
    sources = dict.fromkeys(["a", "b", "c"], "default")
    found = wanted([need(n, CP) for n in "ab"], sources, (), order="zigzag", sp=False)
    assert list(found["modules"]) == ["a", "b"]


def test_an_existing_entry_is_extended_if_all_its_modules_need_the_addition() -> None:
    known, source = (Shard(2, "tp"),), "modules: fc"
    sources = {"l.0.fc": source, "l.1.fc": source}
    needs = [need(name, CP, known, source) for name in sources]
    found = wanted(needs, sources, (), order="zigzag", sp=False)
    assert found["modules"] == {"fc": {"output": {"cp_dim": 1}}}


def test_an_output_grad_key_declares_the_complete_layout() -> None:
    """It does not inherit from the `output` key of the same module."""
    source, known = "modules: fc", CP
    found = wanted(
        [need("fc", (Partial("tp"),), known, source, place="output_grad")],
        {"fc": source},
        (),
        order="zigzag",
        sp=False,
    )
    assert found["modules"] == {"fc": {"output_grad": {"cp_dim": 1, "tp_partial": True}}}


def test_an_existing_entry_is_not_extended_if_only_some_of_its_modules_need_the_addition() -> None:
    source = "modules: *"
    sources = {"a": source, "l.0.fc": source, "l.1.fc": source}
    needs = [need(f"l.{i}.fc", (Shard(2, "tp"),), CP, source) for i in range(2)]
    found = wanted(needs, sources, (), order="zigzag", sp=False)
    assert found == {"modules": {"fc": {"output": {"cp_dim": 1, "tp_dim": -1}}}}


@pytest.mark.parametrize(
    ("layout", "sp", "fields"),
    [
        ((Shard(1, "tp"),), True, {"sp_dim": 1}),
        ((Shard(1, "tp"),), False, {"tp_dim": 1}),
        ((Shard(2, "tp"),), True, {"tp_dim": -1}),
        ((ZigZag(1, "cp"), Shard(1, "tp")), True, {"cp_dim": 1, "sp_dim": 1}),
        ((ZigZag(1, "cp"), Shard(0, "tp")), True, {"cp_dim": 1, "tp_dim": 0}),
        ((Partial("cp"), Partial("tp")), True, {"cp_partial": True, "tp_partial": True}),
        ((Shard(2, "tp", (4, 8)),), True, {"tp_dim": -1, "blocks": [4, 8]}),
    ],
)
def test_suggested_annotations_are_read_back_as_the_layout(
    layout: Layout, sp: bool, fields: dict[str, object]
) -> None:
    data = wanted([need("a", layout)], {"a": "default", "b": "default"}, (), order="zigzag", sp=sp)
    assert data["modules"] == {"a": {"output": fields}}
    point = Point.of(tp=2, cp=2, sp=sp)
    data.setdefault("cp_order", "zigzag")
    assert Annotations.of(data).module("a", "output", point, (4, 4, 4)) == (layout, "modules: a")


def test_without_cp_the_sequence_is_the_dimension_that_most_outputs_are_sharded_in() -> None:
    """A head dimension that is sharded over tp is not the sequence, although sp is on."""
    cuts = {"norm": 0, "mlp": 0, "softmax": 1, "qkv": 2}
    needs = [need(name, (Shard(dim, "tp"),)) for name, dim in cuts.items()]
    sources = dict.fromkeys([*cuts, "other"], "default")
    found = wanted(needs, sources, (), order="", sp=True)["modules"]
    assert found == {
        "norm": {"output": {"sp_dim": 0}},
        "mlp": {"output": {"sp_dim": 0}},
        "softmax": {"output": {"tp_dim": 1}},
        "qkv": {"output": {"tp_dim": -1}},
    }


@pytest.mark.parametrize(
    ("place", "sp", "key"),
    [
        ("output_grad.1", True, "sp_partial"),
        ("output_grad.1", False, "tp_partial"),
        ("output.1", True, "tp_partial"),
    ],
)
def test_partial_output_gradients_are_suggested_as_sp_partial_if_sp_is_on(
    place: str, sp: bool, key: str
) -> None:
    needs = [need("a", (Partial("tp"),), place=place)]
    data = wanted(needs, {"a": "default", "b": "default"}, (), order="", sp=sp)
    assert data == {"modules": {"a": {place: {key: True}}}}


def test_parameters_and_the_loss_have_their_own_sections() -> None:
    names = ["l.0.fc.weight", "l.1.fc.weight", "head.weight", "l.0.norm.weight"]
    needs = [
        need("l.0.fc.weight", (Shard(0, "tp", (4, 4)),), section="parameters", place=""),
        need("l.1.fc.weight", (Shard(0, "tp", (4, 4)),), section="parameters", place=""),
        need("l.0.norm.weight", (Partial("tp"),), section="parameters", place=""),
        need("", (Partial("cp"), Partial("tp", "avg")), section="loss", place=""),
    ]
    data = wanted(needs, {}, names, order="", sp=True)
    assert data == {
        "loss": {"partial": ["cp"], "mean": ["tp"]},
        "parameters": {
            "fc.weight": {"tp_dim": 0, "blocks": [4, 4]},
            "norm.weight": {"sequence_parallel": True},
        },
    }
    assert Annotations.of(data).sequence_parallel("l.3.norm.weight")


def test_a_layout_that_no_annotation_can_declare_has_a_reason() -> None:
    assert "mean" in inexpressible(need("a", (Partial("tp", "avg"),)), "")
    assert "cp_order: zigzag" in inexpressible(need("a", (Shard(1, "cp"),)), "zigzag")
    assert inexpressible(need("a", CP), "zigzag") == ""
    assert cp_order([need("a", CP), need("b", CP), need("c", (Shard(1, "cp"),))]) == "zigzag"
