"""The axes that a program asks for on one device, and the sweep of its first test."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_trainsafe.trace.facts import CollectiveEvent, Site
from pytest_trainsafe.trace.reader import Trace

#: Axes without ranks of their own, which a program reads from the Point.
_READ = ("zero", "recompute", "compile")


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes with ranks that a program asks for, each with how it does so, outermost first.

    Axes that reuse the ranks of others, such as ep, follow; `ranks` maps each to one of these.
    `sweep` maps the axes of a first sweep to their values.  `others` names further axes that the
    program reads, or that its file names although it does not ask for them on one device.
    `unseen` says that nothing in the program asks for an axis.
    """

    asked: Mapping[str, tuple[str, ...]]
    sweep: Mapping[str, list[int] | list[bool]]
    others: tuple[str, ...] = ()
    unseen: bool = field(default=False)
    ranks: Mapping[str, str] = field(default_factory=dict)


def axes_of(trace: Trace, file: Path) -> Axes:
    """The axes that the recorded program asks for; `file` is the program's source."""
    rank, mesh = trace.ranks[0], trace.point.mesh
    used, read = rank.note("used"), rank.note("read_axis")
    found: dict[str, list[str]] = {axis: [] for axis in (*mesh.axes, *mesh.overlaps)}

    def ask(name: str, how: str) -> None:
        for axis in (name,) if name in mesh.overlaps else mesh.members(name):
            if axis in found and how not in found[axis]:
                found[axis].append(how)

    for word in used:
        if word.startswith("group "):
            ask(word.removeprefix("group "), "ctx.group")
    if "microbatches" in used:
        ask("dp", "ctx.microbatches")
    sites = rank.events_of(Site)
    for wrapper in {site.name for site in sites if site.what == "wrapper"}:
        ask("dp", wrapper.rpartition(".")[2])
    named = sorted(_words(file) & {*mesh.of_layouts, "sp"})
    for name in named if "mesh" in used else ():
        ask(name, "ctx.mesh")
    if not any(found.values()) and rank.events_of(CollectiveEvent):
        ask("dp", "collectives over all ranks")
    ranks: dict[str, str] = {}
    for name, over in mesh.overlaps.items():
        if found[name] and over:
            ranks[name] = next(filter(found.get, over), over[0])
            if not found[ranks[name]]:
                ask(ranks[name], f"has the ranks of {name}")
    asked = {axis: tuple(how) for axis, how in found.items() if how}
    swept = list(asked) or list(mesh.members("dp"))[:1] or list(mesh.axes)[:1]
    sweep: dict[str, list[int] | list[bool]] = {axis: [1, 2] for axis in swept}
    if "sp" in read and any(mesh.role(axis) == "tp" for axis in asked):
        sweep["sp"] = [False, True]
    rest = {name for name in named if not sweep.keys() & {name, *mesh.members(name)}}
    others = tuple(sorted({axis for axis in _READ if axis in read} | rest))
    return Axes(asked, sweep, others, not asked, ranks)


def _words(file: Path) -> set[str]:
    """The texts in a source file: a program that slices ctx.mesh names its axes in them."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
