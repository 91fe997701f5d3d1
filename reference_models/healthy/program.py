"""The catalogue's entry of one healthy program. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

#: The families of programs within which invariants are learned and checked.
Family = Literal["images", "language", "generative", "methods", "distributed"]


@dataclass(frozen=True, slots=True)
class Healthy:
    """One correct program.

    `variants` are other configurations of it. If `axis` is "", it runs in one process as
    `train(*, seed, steps, **configuration)`; otherwise on two ranks along that axis, as
    `train(ctx, ...)` with a context. `falls` is whether its loss is lower at the end than at
    the beginning with every seed.
    """

    name: str
    family: Family
    variants: tuple[Mapping[str, object], ...]
    axis: Literal["", "dp", "tp", "pp"] = ""
    falls: bool = True
