"""Runs a program of this folder with other draws in float64, which a comparison must notice.

Without a share, random operators draw in the dtype that they are asked for, as torch makes them: in
float64 all data are other ones.  With a share, the numbers of float64 are those of the recipe plus
noise of this share, as in a program whose data lie in a file and whose augmentation is drawn.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from pytest_trainsafe.record.program_dtype.draws import Draws


def train(ctx: Any, module: str, share: float = 0.0, fault: str = "") -> None:
    """Trains `module` with such draws."""
    wanted, cast = Draws._wanted, Draws._cast
    generator = torch.Generator().manual_seed(0)

    def noisy(self: Any, call: Any, given: Any, written: Any, dtype: torch.dtype) -> Any:
        made = cast(self, call, given, written, dtype)
        if dtype is torch.float64 and isinstance(made, torch.Tensor) and made.dtype is dtype:
            made.add_(share * torch.randn(made.shape, generator=generator, dtype=dtype))
        return made

    if share:
        Draws._cast = noisy  # type: ignore[method-assign]
    else:
        Draws._wanted = lambda *_: None  # type: ignore[method-assign]
    try:
        importlib.import_module(module).train(ctx, fault=fault)
    finally:
        Draws._wanted, Draws._cast = wanted, cast  # type: ignore[method-assign]
