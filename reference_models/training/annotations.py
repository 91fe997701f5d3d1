"""Reads the annotations of a model's activations from `gpt.yaml`, `llama.yaml` and so on."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

from pytest_trainsafe.annotations.text import load
from pytest_trainsafe.reference_models.config import (
    AnyConfig,
    DeepSeekConfig,
    fc1_blocks,
    kv_up_blocks,
    q_up_blocks,
    qkv_blocks,
)


def activation_annotations(model: str, config: AnyConfig) -> dict[str, Any]:
    """Return the annotations for `ctx.watch`, read from the file `{model}.yaml`.

    The blocks of the fused projections depend on the model's sizes.  The file has them for the
    default sizes; they are replaced by those for the sizes of `config`.
    """
    file = Path(__file__).parents[1] / f"{model}.yaml"
    read = copy.deepcopy(_read(file))
    for module, blocks in _blocks(config).items():
        output = read["modules"][module]["output"]
        if "blocks" in output:
            output["blocks"] = list(blocks)
    return read


def _blocks(config: AnyConfig) -> dict[str, tuple[int, ...]]:
    """The blocks in the outputs of fused projections, by the pattern of their entry."""
    if not isinstance(config, DeepSeekConfig):
        return {"linear_qkv": qkv_blocks(config), "linear_fc1": fc1_blocks(config)}
    return {
        "linear_q_up_proj": q_up_blocks(config),
        "linear_kv_up_proj": kv_up_blocks(config),
        "linear_fc1": fc1_blocks(config),
        "shared_experts.linear_fc1": fc1_blocks(config, config.shared * config.expert_ffn),
        "experts.#.linear_fc1": fc1_blocks(config, config.expert_ffn),
    }


@functools.cache
def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = load(file.read_text(encoding="utf-8"), str(file))
    return found
