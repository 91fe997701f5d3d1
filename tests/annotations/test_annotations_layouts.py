"""Annotations give the layouts that docs/design.md says they give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.annotations.entries import AnnotationError
from pytest_trainsafe.core.layout import Layout, Partial, Scaled, Shard, ZigZag
from pytest_trainsafe.core.point import Point

TEXT = """
cp_order: zigzag
loss: {partial: [cp]}
parameters:
  word_embeddings.weight: {tp_dim: 0}
  linear_qkv.weight: {tp_dim: 0, blocks: [64, 64, 64]}
  input_layernorm.weight: {sequence_parallel: true}
modules:
  "*": {output: {cp_dim: 1}}
  linear_qkv: {output: {tp_dim: -1, cp_dim: 1}}
  input_layernorm: {output: {cp_dim: 1, sp_dim: 1}}
  linear_proj: {output: {tp_partial: true}}
  attention: {output: {cp_dim: 0}, output.1: {tp_dim: 0}, output_grad: {tp_partial: true}}
  "": {output: {cp_partial: true}}
"""
ANNOTATIONS = Annotations.of(yaml.safe_load(TEXT))
FULL = Point.of(tp=2, cp=2, sp=True)


@pytest.mark.parametrize(
    ("name", "point", "layout", "source"),
    [
        ("linear_qkv", FULL, (ZigZag(1, "cp"), Shard(2, "tp")), "modules: linear_qkv"),
        ("layers.3.attn.linear_qkv", Point.of(tp=2), (Shard(2, "tp"),), "modules: linear_qkv"),
        ("linear_qkv", Point.of(cp=2), (ZigZag(1, "cp"),), "modules: linear_qkv"),
        ("linear_qkv", Point.of(), (), "modules: linear_qkv"),
        ("my_linear_qkv", FULL, (ZigZag(1, "cp"),), "modules: *"),
        ("input_layernorm", FULL, (ZigZag(1, "cp"), Shard(1, "tp")), "modules: input_layernorm"),
        ("input_layernorm", Point.of(tp=2, sp=False), (), "modules: input_layernorm"),
        ("linear_proj", FULL, (Partial("tp"),), "modules: linear_proj"),
        ("", FULL, (Partial("cp"),), "modules: "),
    ],
)
def test_a_module_output_has_the_layout_of_its_last_matching_entry(
    name: str, point: Point, layout: Layout, source: str
) -> None:
    assert ANNOTATIONS.module(name, "output", point, (4, 4, 4)) == (layout, source)


def test_contiguous_cp_order_gives_a_shard_instead_of_a_zigzag() -> None:
    annotations = Annotations.of(
        {"cp_order": "contiguous", "modules": {"*": {"output": {"cp_dim": 0}}}}
    )
    assert annotations.module("a", "output", FULL, (4,)) == ((Shard(0, "cp"),), "modules: *")


def test_an_output_uses_its_own_key_before_the_common_output_key() -> None:
    def layout(output: str, gradient: bool = False) -> Layout:
        found = ANNOTATIONS.module("attention", output, FULL, (4,), gradient)
        assert found is not None
        return found[0]

    assert layout("output.0") == (ZigZag(0, "cp"),)
    assert layout("output.1") == (Shard(0, "tp"),)
    assert layout("output.1.0") == (Shard(0, "tp"),)
    assert layout("output.1", gradient=True) == (Partial("tp"),)


def test_an_output_gradient_has_the_layout_of_its_output_and_is_whole_if_that_is_partial() -> None:
    def layout(name: str) -> Layout:
        found = ANNOTATIONS.module(name, "output", FULL, (4, 4, 4), gradient=True)
        assert found is not None
        return found[0]

    assert layout("linear_qkv") == (ZigZag(1, "cp"), Shard(2, "tp"))
    assert layout("linear_proj") == ()


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("a.word_embeddings.weight", (Shard(0, "tp"),)),
        ("linear_qkv.weight", (Shard(0, "tp", (64, 64, 64)),)),
        ("input_layernorm.weight", ()),
    ],
)
def test_parameters_have_their_declared_layout_over_tp(name: str, layout: Layout) -> None:
    found = ANNOTATIONS.parameter(name, FULL, (4, 4))
    assert found is not None
    assert found[0] == layout
    assert ANNOTATIONS.parameter(name, Point.of(cp=2), (4, 4)) == ((), found[1])


def test_name_without_an_entry_has_no_layout() -> None:
    assert ANNOTATIONS.parameter("linear_fc1.bias", FULL, (4,)) is None
    assert Annotations.empty().module("linear_qkv", "output", FULL, (4, 4, 4)) is None
    assert Annotations.empty().loss(FULL) is None


def test_the_last_matching_entry_replaces_earlier_ones_completely() -> None:
    annotations = Annotations.of(
        {"parameters": {"fc.weight": {"tp_dim": 0}, "*.weight": {"sequence_parallel": True}}}
    )
    assert annotations.parameter("a.fc.weight", FULL, (4, 4)) == ((), "parameters: *.weight")
    assert annotations.sequence_parallel("a.fc.weight")


def test_a_loss_may_be_declared_partial_or_mean_over_axes() -> None:
    assert ANNOTATIONS.loss(FULL) == ((Partial("cp"),), "loss")
    assert ANNOTATIONS.loss(Point.of(tp=2)) == ((), "loss")
    assert Annotations.of({"loss": {"mean": ["cp"]}}).loss(FULL) == (
        (Partial("cp", "avg"),),
        "loss",
    )


def test_gradients_mean_declares_scaled_layouts_over_the_axes_in_use() -> None:
    annotations = Annotations.of({"gradients": {"mean": ["dp", "cp"]}})
    assert annotations.unreduced(Point.of(dp=2, tp=2)) == (Scaled("dp"),)
    assert annotations.unreduced(Point.of(dp=2, cp=2)) == (Scaled("dp"), Scaled("cp"))
    assert ANNOTATIONS.unreduced(FULL) == ()


def test_entries_that_match_nothing_are_listed_by_section() -> None:
    parameters = ["word_embeddings.weight", "layers.0.linear_qkv.weight", "input_layernorm"]
    modules = ["", "linear_qkv", "linear_proj", "attention"]
    assert ANNOTATIONS.unmatched(iter(parameters), iter(modules)) == [
        "parameters: input_layernorm.weight",
        "modules: input_layernorm",
    ]


def test_an_entry_that_splits_an_absent_dimension_is_named_in_the_error() -> None:
    with pytest.raises(
        AnnotationError, match=r"`modules: \*` splits dimension 1 of 'norm'.*later entry"
    ):
        ANNOTATIONS.module("norm", "output", FULL, (4,))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("paramters: {}", ["unknown key 'paramters'", "Did you mean parameters?"]),
        ("cp_order: zig", ["cp_order is 'zig'", "zigzag, contiguous or striped"]),
        ("parameters: [a]", ["parameters is ['a']", "mapping"]),
        ("parameters: {a: {tp_dims: 0}}", ["`parameters: a`", "'tp_dims'", "mean tp_dim?"]),
        ("parameters: {a: {tp_dim: x}}", ["`parameters: a`", "tp_dim: 'x'", "-1 for the last"]),
        ("parameters: {a: {tp_dim: true}}", ["tp_dim: True"]),
        ("parameters: {a: {tp_dim: 0, blocks: 3}}", ["blocks: 3", "[64, 64, 64]"]),
        ("parameters: {a: {tp_dim: 0, blocks: [0]}}", ["blocks: [0]"]),
        ("parameters: {a: {blocks: [4]}}", ["`blocks` but no tp_dim"]),
        ("parameters: {a: {sequence_parallel: 1}}", ["sequence_parallel: 1", "true or false"]),
        ("parameters: {a: {sequence_parallel: true, tp_dim: 0}}", ["every tp rank holds whole"]),
        ("modules: {a: {tp_dim: 0}}", ["`modules: a`", "'tp_dim'", "output.0"]),
        ("modules: {a: {outputs: {}}}", ["'outputs'", "Did you mean output?"]),
        ("modules: {a: {output: {cp_dim: 0}}}", ["`modules: a`", "cp_order"]),
        ("modules: {a: {output: {tp_dim: 0, sp_dim: 0}}}", ["tp_dim and sp_dim", "over tp"]),
        ("cp_order: zigzag\nmodules: {a: {output: {cp_dim: 0, cp_partial: true}}}", ["over cp"]),
        ("modules: {3: {}}", ["key 3", "quotes"]),
        ("loss: {partial: cp}", ["`loss: partial` is 'cp'", "list of tp, cp, dp"]),
        ("loss: {partial: [ep]}", ["['ep']"]),
        ("gradients: {mean: dp}", ["`gradients: mean` is 'dp'", "list of tp, cp, dp"]),
        ("gradients: {sum: [dp]}", ["`gradients`", "unknown key 'sum'"]),
        ("loss: {partial: [cp], mean: [cp]}", ["lists cp under both `partial` and `mean`"]),
        ("modules: {a: {output: {local: [zero]}}}", ["local: ['zero']", "of tp, sp, cp, dp, pp"]),
        ("modules: {a: {output: {local: ep}}}", ["local: 'ep'", "as in [cp, ep]"]),
        ("parameters:\n  a: {}\n  a: {}", ["'a' appears twice", "line 2"]),
        ("a: [", ["not YAML"]),
        ("!!python/object/apply:os.getcwd []", [".yaml:1: found the tag", "cannot have tags"]),
    ],
)
def test_an_invalid_file_is_refused_with_the_file_name_and_the_reason(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    file = tmp_path / "annotations.yaml"
    file.write_text(text)
    with pytest.raises(AnnotationError) as caught:
        Annotations.read(file)
    for word in (str(file), *words):
        assert word in str(caught.value)


def test_an_absent_file_is_refused_and_an_empty_file_is_accepted(tmp_path: Path) -> None:
    absent = f"{tmp_path}/absent.yaml: annotations cannot be read: there is no such file. A rel"
    with pytest.raises(AnnotationError, match=re.escape(absent)):
        Annotations.read(tmp_path / "absent.yaml")
    (tmp_path / "abesnt.yml").touch()
    with pytest.raises(
        AnnotationError,
        match=r"no such file; did you mean 'abesnt\.yml'\? If you mean another file",
    ):
        Annotations.read(tmp_path / "absent.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    assert Annotations.read(tmp_path / "empty.yaml").parameter("a", FULL, (4,)) is None


def test_an_output_is_local_if_one_of_its_local_axes_is_in_use() -> None:
    annotations = Annotations.of(
        {"modules": {"experts.*": {"output": {"local": ["cp", "ep"]}}, "experts.3": {}}}
    )

    assert annotations.local("experts.1", Point.of(dp=2, ep=2)) == ("output",)
    assert annotations.local("experts.1", Point.of(cp=2)) == ("output",)
    assert not annotations.local("experts.1", Point.of(dp=2, tp=2))
    assert not annotations.local("experts.3", Point.of(dp=2, ep=2))
    assert not annotations.local("router", Point.of(dp=2, ep=2))


@pytest.mark.parametrize(
    ("axis", "used", "unused"),
    [
        ("sp", Point.of(tp=2, sp=True), Point.of(tp=2, sp=False)),
        ("pp", Point.of(pp=2), Point.of(tp=2)),
        ("vpp", Point.of(pp=2, vpp=2), Point.of(pp=2)),
    ],
)
def test_local_applies_to_sp_pp_and_vpp_only_if_they_are_on(
    axis: str, used: Point, unused: Point
) -> None:
    annotations = Annotations.of({"modules": {"a": {"output": {"local": [axis]}}}})

    assert annotations.local("a", used) == ("output",)
    assert annotations.local("a", unused) == ()
