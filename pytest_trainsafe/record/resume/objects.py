"""Finds the schedulers, gradient scalers and samplers of a program, which `ctx.watch` does not get.

Their constructors are intercepted while the program runs. Each object is identified by the order of
creation, which is the same in a Run and in the Run that resumes it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data.distributed import DistributedSampler

#: Objects of these classes, and of classes derived from them, are found.
CLASSES: tuple[type, ...] = (LRScheduler, GradScaler, DistributedSampler)


class Objects:
    """The objects that the program has created.

    They are kept alive, because their state is read after the program has returned.
    """

    def __init__(self) -> None:
        self._made: list[Any] = []

    def of(self, cls: type) -> list[Any]:
        """The objects of a class, in the order in which they were created."""
        return [each for each in self._made if isinstance(each, cls)]

    @contextlib.contextmanager
    def found(self) -> Iterator[None]:
        """Finds the objects that are created in this context."""
        # Some classes, such as ReduceLROnPlateau, do not call the constructor they inherit.
        classes = {each: None for cls in CLASSES for each in _with_subclasses(cls)}
        originals = [(cls, cls.__dict__["__init__"]) for cls in classes if "__init__" in vars(cls)]
        for cls, original in originals:
            cls.__init__ = self._watched(original)
        try:
            yield
        finally:
            for cls, original in originals:
                cls.__init__ = original

    def _watched(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def watched(made: Any, *args: Any, **kwargs: Any) -> None:
            if not any(known is made for known in self._made):
                self._made.append(made)
            original(made, *args, **kwargs)

        return watched


def _with_subclasses(cls: Any) -> Iterator[Any]:
    yield cls
    for derived in cls.__subclasses__():
        yield from _with_subclasses(derived)
