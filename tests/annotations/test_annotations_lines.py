"""An error of an annotation file begins with the file and the line to correct."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.annotations.entries import AnnotationError
from pytest_trainsafe.annotations.lines import place_of
from pytest_trainsafe.core.point import Point

FILE = """\
# of my model
parameters:
  up.weight: {tp_dim: 0}
  "down.*":
    tp_dim: 1
modules:
  up: {output: {tp_dim: -1}}
  act:
    input: {tp_dim: -1}
    output: {tp_dim: -1}
models:
  small:
    parameters:
      up.weight: {tp_dim: 1}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("  up: {output: {tp_dim: -1}}", "  up: {output: {dim: 0}}", 7, "the unknown key 'dim'"),
        ("    tp_dim: 1\n", "    tp_dim: x\n", 4, "`parameters: down.*` has `tp_dim: 'x'`"),
        ("    output: {tp_dim: -1}\n", "    output: 3\n", 10, "modules: act: output is 3"),
        ("    input:", "    inputs:", 8, "`modules: act` has the key 'inputs'"),
        ("modules:\n", "modules: 3\nmodule:\n", 1, "the file` has the unknown key 'module'"),
        ("modules:\n", "modules: {\n", 8, "not YAML"),
        ("  act:\n", "  up: {}\n  act:\n", 7, "'up' appears twice"),
        ("  act:\n", "  act: !tag\n", 8, "found the tag"),
        ("      up.weight: {tp_dim: 1}", "      up.weight: {tp_dim: y}", 14, "`tp_dim: 'y'`"),
    ],
)
def test_an_error_begins_with_the_line_of_the_entry(
    tmp_path: Path, old: str, new: str, line: int, words: str
) -> None:
    path = tmp_path / "layouts.yaml"
    assert old in FILE
    path.write_text(FILE.replace(old, new))
    with pytest.raises(AnnotationError) as caught:
        Annotations.read(tmp_path / "layouts.yaml#small")
    place, _, said = str(caught.value).partition(": ")
    assert (place, words in said) == (f"{path}:{line}", True), str(caught.value)


def test_a_dimension_that_a_tensor_lacks_names_the_line_of_the_entry_that_splits_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "layouts.yaml"
    path.write_text(FILE)
    small = Annotations.read(tmp_path / "layouts.yaml#small")
    for name, line in (("down.bias", 4), ("up.weight", 14)):
        with pytest.raises(AnnotationError, match=f"^{path}:{line}: `parameters: "):
            small.parameter(name, Point.of(tp=2), (4,))


def test_an_entry_that_the_file_no_longer_has_is_at_the_nearest_key_or_at_its_beginning(
    tmp_path: Path,
) -> None:
    path = tmp_path / "layouts.yaml"
    path.write_text(FILE)
    assert place_of(path, "modules: act: output") == f"{path}:10"
    assert place_of(path, "modules: gone") == f"{path}:6"
    assert place_of(path, "buffers: mask") == f"{path}:1"
    path.write_text("a: [")
    assert place_of(path, "modules: act") == f"{path}:1"
    path.unlink()
    assert place_of(path, "modules: act") == f"{path}:1"
