"""Records calls of torch's operators, including those that no Python function wraps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trainsafe.compat.dispatch_modes import CompilableMode
from pytest_trainsafe.judges.learn.instrument.observer import Observer


class Operators(CompilableMode):  # type: ignore[no-untyped-call]
    """Passes every operator that torch dispatches to an observer.

    The API of a call is for example `torch.ops.aten.add.Tensor`.

    Operators of a compiled region run inside compiled kernels and are not observed.
    """

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self._observer.operator(f"torch.ops.{func}", func, tuple(args), dict(kwargs or {}))
