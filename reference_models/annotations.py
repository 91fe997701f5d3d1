"""The annotations of the GPT's activations: `gpt.yaml`, with the model's own sizes put in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pytest_trainsafe.reference_models.config import GPTConfig

#: As it stands, for the default sizes.
FILE = Path(__file__).with_name("gpt.yaml")


def activation_annotations(config: GPTConfig) -> dict[str, Any]:
    """What to hand to `ctx.watch`.

    Only the blocks of the fused projection depend on a size, and a file cannot know it.
    """
    read: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    read["modules"]["linear_qkv"]["output"]["blocks"] = [config.hidden] * 3
    return read
