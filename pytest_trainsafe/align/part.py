"""What one rank holds of a logical tensor.  Made from traces, put together by merge."""

from __future__ import annotations

import msgspec
import torch

from pytest_trainsafe.align.layout import Coordinates, Layout


class Part(msgspec.Struct, frozen=True):
    """What one rank holds of a logical tensor."""

    rank: int
    coordinates: Coordinates
    tensor: torch.Tensor
    layout: Layout = ()
    layout_source: str = "default"
