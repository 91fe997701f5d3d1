"""What the catalogue of healthy programs says of one.  Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

#: The classes within which invariants are learned and checked.
Family = Literal["images", "language", "generative", "distributed"]


@dataclass(frozen=True, slots=True)
class Healthy:
    """One correct program.

    `variants` are other configurations of it.  `axis` is "" for a program of one process,
    `train(*, seed, steps, **configuration)`; else it takes a context, `train(ctx, ...)`, on two
    ranks along that axis.  `falls` says that its loss is lower at the end, with every seed.
    """

    name: str
    family: Family
    variants: tuple[Mapping[str, object], ...]
    axis: Literal["", "dp", "tp", "pp"] = ""
    falls: bool = True
