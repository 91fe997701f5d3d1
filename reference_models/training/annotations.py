"""Reads the annotations of a model's activations from `gpt.yaml`, `llama.yaml` or `moe.yaml`."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import yaml

from pytest_trainsafe.reference_models.config import AnyConfig, fc1_blocks, qkv_blocks


def activation_annotations(model: str, config: AnyConfig) -> dict[str, Any]:
    """Return the annotations for `ctx.watch`, read from the file `{model}.yaml`.

    The blocks of the fused projections depend on the model's sizes.  The file has them for the
    default sizes; they are replaced by those for the sizes of `config`.
    """
    file = Path(__file__).parents[1] / f"{model}.yaml"
    read = copy.deepcopy(_read(file))
    for module, blocks in (("linear_qkv", qkv_blocks(config)), ("linear_fc1", fc1_blocks(config))):
        output = read["modules"][module]["output"]
        if "blocks" in output:
            output["blocks"] = list(blocks)
    return read


@functools.cache
def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found
