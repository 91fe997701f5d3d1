"""`extend` adds missing entries to an annotation file and keeps every character of it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.annotations.extend import extend, render

WANTED: dict[str, Any] = {
    "cp_order": "zigzag",
    "loss": {"partial": ["cp"]},
    "parameters": {"fc.weight": {"tp_dim": 0}},
    "modules": {
        "*": {"output": {"cp_dim": 1}},
        "fc": {"output": {"cp_dim": 1, "tp_dim": -1, "blocks": [4, 4]}},
        "": {"output": {"cp_dim": 1}},
        "layers.#": {"output": {"cp_dim": 1}},
    },
}

BLOCK = """\
# Where things lie.
cp_order: zigzag   # causal

modules:
  # the wide one
  fc:
    output:
      tp_dim: -1   # columns
    output_grad: {tp_partial: true}
  head: {output: {tp_dim: 2}}   # the last

# the end
"""


def test_a_rendered_file_has_all_wanted_entries_and_is_valid() -> None:
    text = render(WANTED)
    assert yaml.safe_load(text) == WANTED
    assert "  fc: {output: {cp_dim: 1, tp_dim: -1, blocks: [4, 4]}}\n" in text
    assert '  "*": {output: {cp_dim: 1}}\n' in text
    Annotations.of_text(text, "new")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "# no end of line"])
def test_an_empty_file_keeps_its_comments(text: str) -> None:
    extended = extend(text, WANTED)
    assert extended.startswith(text)
    assert yaml.safe_load(extended) == WANTED


@pytest.mark.parametrize("text", ["{}", "{}\n", "# none yet\n{}\n", "{ }  # none yet\n"])
def test_an_empty_mapping_gives_way_to_entries(text: str) -> None:
    extended = extend(text, {"cp_order": "zigzag"})

    assert yaml.safe_load(extended) == {"cp_order": "zigzag"}
    assert ("# none yet" in extended) == ("# none yet" in text)


def test_existing_entries_are_kept_and_missing_entries_are_added() -> None:
    extended = extend(BLOCK, WANTED)
    read = yaml.safe_load(extended)
    assert read["modules"]["fc"] == {
        "output": {"tp_dim": -1, "cp_dim": 1, "blocks": [4, 4]},
        "output_grad": {"tp_partial": True},
    }
    assert list(read["modules"]) == ["*", "fc", "head", "", "layers.#"]
    assert read["loss"] == {"partial": ["cp"]}
    kept = iter(extended.splitlines())
    # Every line of the old text is in the new one, in the same order.
    assert all(any(line == new for new in kept) for line in BLOCK.splitlines())


def test_existing_entries_with_other_values_are_not_overwritten() -> None:
    text = "cp_order: contiguous\nmodules:\n  fc: {output: {cp_dim: 0}}\n"
    wanted = {"cp_order": "zigzag", "modules": {"fc": {"output": {"cp_dim": 1}}}}
    assert extend(text, wanted) == text


@pytest.mark.parametrize("axes", ["[]", "[cp]", "[ cp, ]", "[dp]", "[cp, dp]"])
def test_missing_items_are_added_to_a_list(axes: str) -> None:
    text = f"loss: {{mean: {axes}}}  # as it is\n"
    extended = extend(text, {"loss": {"mean": ["dp"]}})
    before = yaml.safe_load(axes)
    assert yaml.safe_load(extended)["loss"]["mean"] == [*before, *({"dp"} - {*before})]
    assert extended.endswith("# as it is\n")


@pytest.mark.parametrize(
    "text",
    [
        "{modules: {fc: {output: {tp_dim: -1}}}, cp_order: zigzag}\n",
        "{cp_order: zigzag, modules: {}}",
        "modules:\ncp_order: zigzag\n",
        "modules: {fc: {output: {tp_dim: -1,}},}\n",
        "modules: {\n  fc: {output: {tp_dim: -1}}\n}\nloss:\n  partial: [cp]\n",
        "parameters:\n    other.weight:\n        tp_dim: 1\nmodules:\n    a: {}\n",
        BLOCK,
    ],
)
def test_block_and_flow_style_files_are_extended_without_changing_their_characters(
    text: str,
) -> None:
    extended = extend(text, WANTED)
    read, before = yaml.safe_load(extended), yaml.safe_load(text)
    assert {**read, **before}.keys() == read.keys()
    assert read["modules"]["fc"]["output"]["cp_dim"] == 1
    assert next(iter(read["modules"])) == "*"
    for pattern, entry in (before["modules"] or {}).items():
        for place, fields in entry.items():
            assert fields.items() <= read["modules"][pattern][place].items()
    assert extend(extended, WANTED) == extended
    Annotations.of_text(extended, "extended")
    rest = iter(extended)
    assert all(character in rest for character in text), "a character of the file was changed"
