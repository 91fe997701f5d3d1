"""The reference GPT with annotations from a user's file, in which some may be missing."""

from __future__ import annotations

from typing import Any


def train(ctx: Any, annotations: str = "", bug: str = "", layers: int = 2) -> None:
    """`gpt.train`, annotated by the file `annotations` ("" for no annotations)."""
    from pytest_trainsafe.reference_models.config import GPTConfig
    from pytest_trainsafe.reference_models.parallel.apply import parallel_gpt
    from pytest_trainsafe.reference_models.parallel.axes import Axes
    from pytest_trainsafe.reference_models.training.language import Recipe, train_language_model

    axes = Axes.of(ctx, bug)
    model = parallel_gpt(GPTConfig(layers, 64, 4, 32), axes)
    recipe = Recipe(2, 32, 2, 2, 1e-3)
    train_language_model(ctx, model, axes, recipe, annotations or None)  # type: ignore[arg-type]
