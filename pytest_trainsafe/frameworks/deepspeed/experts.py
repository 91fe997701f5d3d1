"""Gives the experts of DeepSpeed's MoE layers the numbers that they have on a single device.

Called by the recorder and `ctx.initialize`.  Each ep rank numbers its experts from 0
(deepspeed/moe/experts.py), so the rank's position in ep determines what to add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from pytest_trainsafe.compat.modules import children_of
from pytest_trainsafe.core.layout import Owned
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.record.model.names import canonical


def expert_prefixes(parts: Sequence[tuple[str, nn.Module]]) -> dict[str, int]:
    """Maps the canonical name of each DeepSpeed expert list to its length on this rank."""
    found: dict[str, int] = {}
    for prefix, part in parts:
        for name, module in part.named_modules():
            cls = type(module)
            if cls.__name__ == "Experts" and cls.__module__.startswith("deepspeed.moe"):
                own = canonical(name)
                whole = f"{prefix}.{own}" if prefix and own else prefix or own
                found[whole] = len(children_of(next(iter(module.children()))))
    return found


def inside_layers(parts: Sequence[tuple[str, nn.Module]]) -> tuple[str, ...]:
    """Prefixes of the names of modules inside MoE layers.

    The outputs of these modules have no logical counterpart, because tokens in them are grouped
    by expert and padded.
    """
    return tuple(f"{prefix.rpartition('.')[0]}." for prefix in expert_prefixes(parts))


def renumbering(
    parts: Sequence[tuple[str, nn.Module]], point: Point, coordinates: Mapping[str, int]
) -> Callable[[str], str]:
    """A function that maps a name on this rank to the name in the whole model."""
    prefixes = expert_prefixes(parts)
    ranks = int(point.get("ep", 1))
    counted = tuple(reversed(point.mesh.overlaps["ep"]))
    first = Owned(counted, ranks).owner(coordinates, point.sizes) if ranks > 1 else 0

    def rename(name: str) -> str:
        for prefix, count in prefixes.items():
            if name.startswith(f"{prefix}."):
                number, dot, rest = name.removeprefix(f"{prefix}.").partition(".")
                if number.isdigit():
                    return f"{prefix}.{first * count + int(number)}{dot}{rest}"
        return name

    return rename
