"""Annotations that the GPT lacks are suggested, or written to its file, and let the test pass."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models import gpt as reference
from tests.support.end_to_end import inner_pytest

pytestmark = pytest.mark.usefixtures("shared_fork_server")

TEST = """
import pytest
from tests.support.end_to_end.models.gpt_by_file import train
from pytest_trainsafe import assert_trainsafe

@pytest.mark.trainsafe(train, tp=2, cp=[1, 2], sp=[False, True], args={args}, {more})
def test_gpt(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""

WHOLE = Annotations.read(Path(reference.__file__).with_name("gpt.yaml"))
SP = Point.of(tp=2, cp=2, sp=True)
LAYER = "decoder.layers.1."
OUTPUTS = {
    "": 2, "embedding": 3, "embedding.word_embeddings": 3, "decoder": 3, "decoder.layers.0": 3,
    LAYER + "input_layernorm": 3, LAYER + "self_attention.linear_qkv": 3, LAYER + "mlp": 3,
    LAYER + "self_attention.core_attention": 3, LAYER + "mlp.activation_func": 3,
    "output_layer": 3, "cross_entropy": 2,
}  # fmt: skip


def source(more: str = "", **args: str) -> str:
    return TEST.format(args=args, more=more)


def equivalent(file: Path, point: Point) -> None:
    """Assert that a file gives the GPT's outputs and loss the layouts of the GPT's own file."""
    found = Annotations.read(file)
    for name, ndim in OUTPUTS.items():
        expected = WHOLE.module(name, "output", point, (4,) * ndim)
        got = found.module(name, "output", point, (4,) * ndim)
        assert (got or ((),))[0] == (expected or ((),))[0], (name, point)
    assert found.loss(point) == WHOLE.loss(point)


@pytest.mark.slow
def test_annotate_writes_annotations_equivalent_to_those_of_the_gpt(tmp_path: Path) -> None:
    only = ("--trainsafe-sweep", "cp=2", "sp=true")
    done = inner_pytest.run(tmp_path, source(), *only, "--trainsafe-annotate")
    assert done.returncode == 1
    assert "written to test_inner.annotations.yaml: pass this file to ctx.watch" in (
        text := inner_pytest.flat(done.stdout)
    )
    assert "31 tensors lack an annotation, or part of one: with these annotations, every" in text
    assert "linear_qkv: {output: {cp_dim: 1, tp_dim: -1, blocks: [64, 64, 64]}}" in text
    file = tmp_path / "test_inner.annotations.yaml"
    equivalent(file, SP)
    adopted = source(annotations=str(file))
    passed = inner_pytest.run(tmp_path, adopted)
    # At the Point with sp, sequence and width differ in layout: its annotations fit all Points.
    assert passed.returncode == 0, passed.stdout


@pytest.mark.slow
def test_annotate_extends_a_file_until_every_point_of_the_sweep_passes(tmp_path: Path) -> None:
    file = tmp_path / "gpt.yaml"
    file.write_text("# mine\nmodules:\n  output_layer: {output: {tp_dim: -1}}  # the logits\n")
    only = ("--trainsafe-sweep", "cp=2", "--trainsafe-annotate")
    for _ in range(4):
        done = inner_pytest.run(tmp_path, source(annotations=str(file)), *only)
        if done.returncode == 0:
            break
        assert "added to gpt.yaml" in inner_pytest.flat(done.stdout)
    assert done.returncode == 0, done.stdout + file.read_text()
    assert file.read_text().startswith("# mine\n")
    assert "# the logits" in file.read_text()
    for point in (SP, Point.of(tp=2, cp=2), Point.of(tp=2, sp=True), Point.of(tp=2)):
        equivalent(file, point)


def test_without_the_annotate_option_suggested_annotations_are_not_written(tmp_path: Path) -> None:
    file = tmp_path / "gpt.yaml"
    shutil.copy(str(WHOLE.file), file)
    read = yaml.safe_load(file.read_text())
    del read["modules"]["core_attention"]
    file.write_text(before := yaml.safe_dump(read, sort_keys=False))
    args = source(annotations=str(file)), "--trainsafe-sweep", "cp=2", "sp=false"
    options = ("--trainsafe-record", "sketch", "--trainsafe-launcher=threads")
    done = inner_pytest.run(tmp_path, *args, *options)
    text = inner_pytest.flat(done.stdout)
    assert "2 tensors lack an annotation, or part of one: with these annotations, every" in text
    assert "core_attention: {output: {cp_dim: 1, tp_dim: -1}}" in text
    assert "add this to gpt.yaml, or run with --trainsafe-annotate" in text
    assert file.read_text() == before
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".yaml") == ["gpt.yaml"]


def test_a_bug_is_not_explained_by_a_suggested_layout(tmp_path: Path) -> None:
    more = 'candidate_args={"bug": "tp-embedding-mask"}'
    only = ("--trainsafe-sweep", "cp=2", "sp=true", "--trainsafe-annotate")
    done = inner_pytest.run(tmp_path, source(more), *only, "--trainsafe-launcher=threads")
    text = inner_pytest.flat(done.stdout)
    assert done.returncode == 1
    assert (
        "embedding.word_embeddings.output: no layout explains it; the nearest is dimension 1"
        in (text)
    )
    assert "embedding.word_embeddings.output · activation · step 0 · micro-batch 0 is still" in text
    written = Annotations.read(tmp_path / "test_inner.annotations.yaml")
    assert {pattern for pattern, _ in written.entries.modules} == {"position_embeddings"}
    assert written.loss(SP) is None
