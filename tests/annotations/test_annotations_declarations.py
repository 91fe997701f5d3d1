"""Declarations that apply only at some Points or to some models; invalid ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.annotations.entries import AnnotationError
from pytest_trainsafe.annotations.patterns import matches
from pytest_trainsafe.core.layout import Layout, Partial, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import Kind, TensorId
from pytest_trainsafe.record.model.parameter_layout import gradient_partial_axes
from pytest_trainsafe.trace.local_key_paths import is_local, note_of


@pytest.mark.parametrize(
    ("point", "axes"),
    [
        (Point.of(tp=2), ("tp",)),
        (Point.of(tp=2, sp=True, cp=2), ("cp", "tp")),
        (Point.of(cp=2), ("cp",)),
        (Point.of(tp=2, pp=2), ("tp", "pp")),
        (Point.of(pp=2), ("pp",)),
    ],
)
def test_gradient_partial_declares_partial_gradients_over_the_axes_in_use(
    point: Point, axes: tuple[str, ...]
) -> None:
    annotations = Annotations.of(
        {"parameters": {"q_norm.weight": {"gradient_partial": ["tp", "pp"]}}}
    )

    assert gradient_partial_axes("attn.q_norm.weight", object(), point, annotations) == axes
    other = tuple(axis for axis in axes if axis == "cp")
    assert gradient_partial_axes("attn.norm.weight", object(), point, annotations) == other


def _layout(entry: dict[str, Any], point: Point, gradient: bool = False) -> Layout:
    annotations = Annotations.of({"modules": {"proj": entry}})
    found = annotations.module("proj", "output.1", point, (4, 4, 4), gradient)
    assert found is not None
    return found[0]


def test_sp_partial_declares_a_partial_output_gradient_only_if_sp_is_on() -> None:
    entry = {"output_grad.1": {"sp_partial": True}}

    assert _layout(entry, Point.of(tp=2, sp=True), gradient=True) == (Partial("tp"),)
    assert _layout(entry, Point.of(tp=2), gradient=True) == ()
    assert _layout(entry, Point.of(tp=2, sp=True)) == ()


def _id(kind: Kind, name: str, module: str = "attn") -> TensorId:
    return TensorId(0, 0, kind, module, name)


@pytest.mark.parametrize(
    ("entry", "local", "compared"),
    [
        (
            {"output.0": {"local": ["sp"]}},
            [_id("activation", "output.0"), _id("activation_grad", "output.0.1")],
            [_id("activation", "output.1"), _id("activation", "output.01")],
        ),
        (
            {"output_grad.0": {"local": ["sp"]}},
            [_id("activation_grad", "output.0")],
            [_id("activation", "output.0"), _id("activation_grad", "output.1")],
        ),
        (
            {"output": {"local": ["sp"]}},
            [_id("activation", "output.0"), _id("activation_grad", "output")],
            [_id("activation", "output", module="attn.proj")],
        ),
    ],
)
def test_local_applies_only_to_the_output_key_that_declares_it(
    entry: dict[str, Any], local: list[TensorId], compared: list[TensorId]
) -> None:
    annotations = Annotations.of({"modules": {"attn": entry}})
    places = annotations.local("attn", Point.of(tp=2, sp=True))
    noted = {note_of("attn", place) for place in places}

    assert [is_local(id, noted) for id in local] == [True] * len(local)
    assert [is_local(id, noted) for id in compared] == [False] * len(compared)
    assert annotations.local("attn", Point.of(tp=2)) == ()


def test_an_optional_entry_that_matches_nothing_is_not_listed_as_unmatched() -> None:
    annotations = Annotations.of(
        {
            "parameters": {"gate.weight": {"tp_dim": 0, "optional": True}, "up.weight": {}},
            "modules": {"mtp": {"optional": True, "output": {"tp_dim": -1}}, "down": {}},
        }
    )

    assert annotations.unmatched(["a.b"], ["c"]) == ["parameters: up.weight", "modules: down"]
    found = annotations.module("mtp", "output", Point.of(tp=2), (4, 4))
    assert found == ((Shard(1, "tp"),), "modules: mtp")


MODELS = {
    "parameters": {"qkv.weight": {"tp_dim": 0}, "head.weight": {"tp_dim": 0}},
    "models": {
        "gpt": {"parameters": {"head.weight": {"tp_dim": 1}, "fc.weight": {"tp_dim": 0}}},
        "llama": {"loss": {"mean": ["dp"]}, "parameters": {"gate.weight": {"tp_dim": 0}}},
    },
}


def test_a_file_may_have_entries_for_several_models() -> None:
    gpt, llama = (Annotations.of(MODELS, model=model) for model in ("gpt", "llama"))
    point = Point.of(tp=2, dp=2)

    assert gpt.parameter("head.weight", point, (4, 4)) == (
        (Shard(1, "tp"),),
        "parameters: head.weight",
    )
    assert llama.parameter("head.weight", point, (4, 4)) == (
        (Shard(0, "tp"),),
        "parameters: head.weight",
    )
    assert gpt.parameter("gate.weight", point, (4, 4)) is None
    assert (gpt.loss(point), llama.loss(point)) == (None, ((Partial("dp", "avg"),), "loss"))
    names = ["qkv.weight", "head.weight", "fc.weight"]
    assert gpt.unmatched(names, []) == []


def test_a_model_is_selected_by_a_suffix_of_the_file_name(tmp_path: Path) -> None:
    file = tmp_path / "layouts.yaml"
    file.write_text("models: {gpt: {parameters: {a: {tp_dim: 0}}}, llama: {}}\n")

    found = Annotations.read(Path(f"{file}#gpt"))
    assert (found.file, found.model) == (file, "gpt")
    assert [pattern for pattern, _ in found.entries.parameters] == ["a"]
    with pytest.raises(AnnotationError, match=r"for the models gpt, llama; .*'layouts.yaml#gpt'"):
        Annotations.read(file)
    with pytest.raises(AnnotationError, match=r"no model 'lama' .*Did you mean llama\?"):
        Annotations.read(Path(f"{file}#lama"))
    literal = tmp_path / "a#b.yaml"
    literal.write_text("parameters: {b: {tp_dim: 0}}\n")
    assert Annotations.read(literal).entries.parameters[0][0] == "b"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("decoder.layers.0.fc1", True),
        ("decoder.layers.27.fc1", True),
        ("decoder.layers.x.fc1", False),
        ("decoder.layers.1.mlp.fc1", False),
        ("layers.3.fc1.weight", False),
        ("sublayers.3.fc1", False),
    ],
)
def test_a_number_sign_in_a_pattern_matches_an_integer(name: str, found: bool) -> None:
    assert matches("layers.#.fc1", name) is found
    entries = Annotations.of({"modules": {"layers.#.fc1": {"output": {"tp_dim": 0}}}})
    assert (entries.module(name, "output", Point.of(tp=2), (4,)) is not None) is found


def test_a_number_sign_in_brackets_matches_itself_literally() -> None:
    assert matches("a[#]", "a#")
    assert not matches("a[#]", "a1")


def test_permuted_declares_a_dimension_order_for_an_axis() -> None:
    entry = {"output": {"cp_dim": 1, "sp_dim": 1, "permuted": {"sp": [1, 0, 2]}}}
    annotations = Annotations.of({"cp_order": "contiguous", "modules": {"embed": entry}})
    sp = Point.of(tp=2, sp=True)

    assert annotations.permuted("embed", "output", sp, 3) == (1, 0, 2)
    assert annotations.permuted("embed", "output", Point.of(tp=2), 3) == ()
    assert annotations.permuted("other", "output", sp, 3) == ()
    assert annotations.module("embed", "output", sp, (4, 4, 4)) == (
        (Shard(1, "tp"),),
        "modules: embed",
    )
    with pytest.raises(AnnotationError, match=r"'embed' for output .*\[1, 0, 2\].* 2 dimensions"):
        annotations.permuted("embed", "output", sp, 2)


def test_axes_in_use_at_one_point_must_declare_the_same_dimension_order() -> None:
    orders = {"sp": [1, 0, 2], "cp": [0, 2, 1]}
    annotations = Annotations.of({"modules": {"embed": {"output": {"permuted": orders}}}})

    assert annotations.permuted("embed", "output", Point.of(cp=2), 3) == (0, 2, 1)
    with pytest.raises(AnnotationError, match="different orders for sp and cp"):
        annotations.permuted("embed", "output", Point.of(tp=2, cp=2, sp=True), 3)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"parameters": {"a": {"gradient_partial": ["cp"]}}},
            "['cp']`; gradient_partial must be a list of tp, pp",
        ),
        ({"parameters": {"a": {"gradient_partial": "tp"}}}, "as in [tp]"),
        ({"parameters": {"a": {"gradient_partial": ["tp"], "tp_dim": 0}}}, "holds whole"),
        (
            {"parameters": {"a": {"expert_tp_size": 0}}},
            "`expert_tp_size: 0`; expert_tp_size must be a number",
        ),
        ({"parameters": {"a": {"expert_tp_size": True}}}, "expert_tp_size: True"),
        ({"parameters": {"a": {"optional": 1}}}, "`optional: 1`; optional must be true or false"),
        ({"modules": {"a": {"optional": "yes"}}}, "optional: 'yes'"),
        ({"modules": {"a": {"optinal": True}}}, "Did you mean optional?"),
        (
            {"modules": {"a": {"output": {"sp_partial": True, "sp_dim": 0}}}},
            "sp_dim and sp_partial, which all act over tp",
        ),
        ({"modules": {"a": {"output": {"permuted": {"sp": [0, 1]}}}}}, "{sp: [0, 1]}"),
        ({"modules": {"a": {"output": {"permuted": {"sp": [1, 1]}}}}}, "restores the logical"),
        ({"modules": {"a": {"output": {"permuted": {"zero": [1, 0]}}}}}, "one of tp, sp, cp"),
        ({"modules": {"a": {"output": {"permuted": [1, 0]}}}}, "must be a mapping"),
        (
            {"modules": {"a": {"output_grad": {"permuted": {"sp": [1, 0]}}}}},
            "allowed only under `output`",
        ),
        ({"modules": {"a": {"output.1": {"decision": True}}}}, "allowed only under `output`"),
        (
            {"modules": {"a": {"output": {"decision": "top-k"}}}},
            "`decision: 'top-k'`; decision must be",
        ),
        ({"models": {"a": {"models": {}}}}, "`models: a` has the unknown key 'models'"),
        ({"models": {"a": {"modules": {"b": {"outputs": {}}}}, "c": {}}}, "annotations#a"),
        ({"models": ["gpt"]}, "models is ['gpt']; it must be a mapping"),
    ],
)
def test_invalid_declarations_are_refused_with_the_reason(data: dict[str, Any], words: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        Annotations.of(data)
    assert words in str(caught.value)
