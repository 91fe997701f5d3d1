"""The files that `torch.save` opens, in C++ and so without Python's audit events.

Needs the class `_open_zipfile_writer_file` of torch.serialization, which torch 2.10 to 2.14 have.
Without it, a file that a program saves and loads again counts as one that it reads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_trainsafe.compat.private import Capability
from pytest_trainsafe.core.rank.state import replacing

SAVES = Capability("files that a program saves itself are not told from files that it reads")

_writer = SAVES.of("torch.serialization", "_open_zipfile_writer_file")


@contextmanager
def noted_saves(saved: Callable[[object], None]) -> Iterator[None]:
    """Calls `saved` with the name of each file that `torch.save` opens in this context."""
    if _writer is None:
        yield
        return
    initialise = _writer.__init__

    @functools.wraps(initialise)
    def noted(self: object, name: object, *rest: object, **more: object) -> None:
        saved(name)
        initialise(self, name, *rest, **more)

    replacing(_writer, "__init__")
    _writer.__init__ = noted
    try:
        yield
    finally:
        _writer.__init__ = initialise
