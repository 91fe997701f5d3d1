"""Records the lines of a program that call its model, update its parameters, and the like.

Reports name these lines for faults outside of the model.  Called by the recorder.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe.compat.distributed.parallel import APPLIED_BY, ComposableState
from pytest_trainsafe.core.code_files import calling_lines, owner_of
from pytest_trainsafe.core.rank.state import replacing
from pytest_trainsafe.record.lines.placements import Placements
from pytest_trainsafe.trace.facts import SetUp, Site, What
from pytest_trainsafe.trace.writer import RankWriter

#: Maximum number of lines that are recorded for each kind (`What`).
MAX_SITES = 8


class Sites:
    """Records source lines ("path:line") of the program on one rank, each line once."""

    def __init__(self, writer: RankWriter) -> None:
        self._writer = writer
        self._noted: set[Site] = set()
        self._counts: Counter[What] = Counter()
        self._seen: set[tuple[What, object]] = set()
        self._constructed: list[Site] = []
        self._places = Placements()

    def note(
        self, what: What, when: object = None, name: str = "", site: Site | None = None
    ) -> None:
        """Records the line `site`, or by default the program's innermost line on the stack.

        `what` is the kind of the line.  `when` identifies a time, such as a step.  Only the
        first call with the same `what` and the same `when` records a line, unless `when` is None.
        `name` is stored with the line: the class, the operation or the module that the line
        concerns.
        """
        if self._counts[what] >= MAX_SITES or (what, when) in self._seen:
            return
        site = site or self.here(what, name)
        if site is None:
            return
        if when is not None:
            self._seen.add((what, when))
        self.add(site)

    def here(self, what: What, name: str = "") -> Site | None:
        """The program's innermost line on the stack; None if there is none.  Does not record it."""
        at, user = calling_lines()
        # On a GPU, hooks of a backward run in a thread without the program's frames.
        known = owner_of(at.rpartition(":")[0]) in ("project", "installed", "fixture")
        return Site(what, at, user, name) if known else None

    def start_own_step(self, localising: bool) -> None:
        """Begins to record which of the project's functions an optimizer of its own calls.

        Does nothing outside of a localisation, if the optimizer's class is not the project's, and
        if another profiler runs.
        """
        wanted = localising and self._counts["stepper"] and not self._counts["steps"]
        if wanted and sys.getprofile() is None:
            sys.setprofile(self._on_call)

    def end_own_step(self) -> None:
        """Ends what `start_own_step` began."""
        if sys.getprofile() == self._on_call:
            sys.setprofile(None)

    def _on_call(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # Comprehensions and lambdas have no names of their own; the function around them is named.
        named = event == "call" and not code.co_name.startswith("<")
        if named and owner_of(code.co_filename) == "project":
            at = f"{code.co_filename}:{code.co_firstlineno}"
            self.add(Site("steps", at, name=code.co_qualname))

    def write_constructed(self) -> None:
        """Records the lines that `constructions` has noted since the last call of this method."""
        for site in self._constructed:
            self.add(site)
        self._constructed.clear()

    def write_places(self, names: Mapping[nn.Module, str]) -> None:
        """Records the lines that `constructions` has noted for modules, and the present line.

        `names` has the names of the modules.  The present line is the one that calls ctx.watch.
        """
        for module, lines in self._places.lines(names).items():
            if module in names:
                self._writer.add(SetUp(names[module], *lines))
        self.note("watch")

    @contextlib.contextmanager
    def constructions(self) -> Iterator[None]:
        """Notes lines in a `with` block that construct objects or put modules into their places.

        The objects are optimizers, process groups and those wrappers of torch that reduce
        gradients; `write_constructed` records their lines, and those that call `no_sync` of a
        DistributedDataParallel; `write_places` records those of modules.
        """
        classes: list[tuple[Any, What]] = [
            (torch.optim.Optimizer, "optimizer"),
            (DistributedDataParallel, "wrapper"),
        ]
        if ComposableState is not None:
            classes.append((ComposableState, "wrapper"))
        before = [(cls, cls.__dict__.get("__init__")) for cls, _ in classes]
        for cls, what in classes:
            replacing(cls, "__init__")
            cls.__init__ = self._watched(cls.__init__, what)
        makes, ddp = c10d.new_group, cast(Any, DistributedDataParallel)
        unsynced = ddp.no_sync
        for owner, name in ((ddp, "no_sync"), (c10d, "new_group"), (dist, "new_group")):
            replacing(owner, name)
        ddp.no_sync = self._watched(unsynced, "no_sync")
        c10d.new_group = dist.new_group = self._watched(makes, "group", "new_group")
        try:
            with self._places.watched():
                yield
        finally:
            c10d.new_group = dist.new_group = makes
            ddp.no_sync = unsynced
            for cls, original in before:
                if original is None:
                    del cls.__init__
                else:
                    cls.__init__ = original

    def _watched(
        self, original: Callable[..., Any], what: What, name: str = ""
    ) -> Callable[..., Any]:
        """`original`, which also notes the line that calls it.

        `name` is stored with the line; by default it is the class of the first argument.
        """

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            called = name or type(args[0]).__name__
            site = self.here(what, APPLIED_BY.get(called, called))
            if site is not None:
                self._constructed.append(site)
            if what == "optimizer":
                self._constructed += _own_step(type(args[0]))
            return original(*args, **kwargs)

        return watched

    def add(self, site: Site) -> None:
        """Records a line, unless it is already recorded or its kind has MAX_SITES lines."""
        if not site.at or site in self._noted or self._counts[site.what] >= MAX_SITES:
            return
        self._noted.add(site)
        self._counts[site.what] += 1
        self._writer.add(site)


def _own_step(cls: type) -> list[Site]:
    """The line that defines the step of a class of optimizers, if the project defines it."""
    code = getattr(inspect.unwrap(getattr(cls, "step", None) or cls), "__code__", None)
    if code is None or owner_of(code.co_filename) != "project":
        return []
    return [Site("stepper", f"{code.co_filename}:{code.co_firstlineno}", name=cls.__name__)]
