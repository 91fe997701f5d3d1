"""Records every operator of one step with exact hashes, to find the first result that differs.

Called by the recorder in Runs whose RunSpec names a step. Here a step begins where the previous
one ends. The first step begins where the program begins, so that it includes the preparation of
data and initial values.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
import xxhash
from torch import nn

from pytest_trainsafe.compat.dispatch_modes import CompilableMode
from pytest_trainsafe.compat.operators import schema_of, tree_leaves
from pytest_trainsafe.compat.tensors import local_part
from pytest_trainsafe.core.code_files import PACKAGE, TORCH, owner_of
from pytest_trainsafe.judges.replay.determinism.instrument.outside_reads import OutsideReads
from pytest_trainsafe.judges.replay.rng.instrument import frames, ledger
from pytest_trainsafe.record.clock import Clock, in_backward
from pytest_trainsafe.record.program_dtype import random_operators
from pytest_trainsafe.trace.operators import OperatorCount, OperatorEvent
from pytest_trainsafe.trace.writer import RankWriter

#: Maximum number of operators that are recorded; each takes about 300 bytes.
MAX_OPERATORS = 50_000

#: The real function, which a sealed Run replaces. It is called often.
_getpid = os.getpid

#: Maximum length of the text of an operator's arguments, in characters.
_LONGEST = 200

#: Files of torch and of the RNG ledger that only pass a call on.  Between the recorder's code and
#: an operator that it calls, the stack has no other files.
_THIN = tuple(
    TORCH + name.replace("/", os.sep)
    for name in (
        *("_tensor.py", "functional.py", "_ops.py", "nn/functional.py", "overrides.py"),
        *("utils/_contextlib.py", "utils/_python_dispatch.py", "utils/_pytree.py", "_linalg_utils"),
    )
)
# Random operators of the program are called through the RNG ledger.
_THIN += (random_operators.__file__, ledger.__file__)
_THIN += (str(PACKAGE / "record" / "program_dtype" / "draws.py"),)


class OperatorLedger(CompilableMode):  # type: ignore[no-untyped-call]
    """Records the operators of the step `step` of a rank.

    The program must run inside the context manager that the method `recording` returns.
    """

    def __init__(self, step: int, writer: RankWriter, clock: Clock) -> None:
        super().__init__()
        self._step = max(step, 0)
        self._writer = writer
        self._clock = clock
        self._names: Mapping[nn.Module, str] = {}
        self._called = self._recorded = 0
        self._reads = OutsideReads(writer)
        self._pid = _getpid()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Records, in this context, the step's operators and its reads from outside the process."""
        before = sys.getprofile()
        if before is None:
            sys.setprofile(self._profile)
        try:
            with self:
                yield
        finally:
            if before is None:
                sys.setprofile(None)
        self._writer.add(OperatorCount(self._called, self._recorded))

    def watch(self, names: Mapping[nn.Module, str]) -> None:
        """Sets the modules to which operators are attributed from now on.

        `names` maps each module to its name.
        """
        self._names = names

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not self._on or _of_the_recorder(sys._getframe(1)):
            return func(*args, **kwargs)
        self._called += 1
        if self._called > MAX_OPERATORS:
            return func(*args, **kwargs)
        given = tree_leaves((args, dict(kwargs)))
        inputs = _digest(given)
        result = func(*args, **kwargs)
        # The result of a collective exists only after a wait, so it is not hashed.
        outputs = "" if func.namespace in ("c10d", "_c10d_functional") else _digest([result])
        whole = self._clock.step is None or in_backward()
        place = frames.place(self._names, whole=whole, skip=2)
        self._recorded += 1
        self._writer.add(
            OperatorEvent(
                name=str(func),
                step=self._step,
                inputs=inputs,
                outputs=outputs,
                arguments=_described(given),
                microbatch=None if self._clock.step is None else self._clock.microbatch,
                module=None if place.module is None else self._names[place.module],
                backward=in_backward(),
                view=_is_view(func),
                at=place.at,
                user=place.user,
            )
        )
        return result

    @property
    def _on(self) -> bool:
        return self._clock.steps_done == self._step and self._in_process

    @property
    def _in_process(self) -> bool:
        """Whether this is the rank's process, and not one that the program forked."""
        return _getpid() == self._pid

    def _profile(self, frame: FrameType, event: str, called: Any) -> None:
        """The profile function: records reads from outside the process, such as of the clock.

        Reads before the step count too: a result of the step may depend on them.
        """
        if event == "c_call" and self._clock.steps_done <= self._step and self._in_process:
            self._reads.called(frame, called, self._recorded)


def _of_the_recorder(frame: FrameType | None) -> bool:
    """Whether the recorder called the operator, to hash, copy or sketch a tensor."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_THIN):
            return owner_of(file) == "ours"
        frame = frame.f_back
    return False


def _is_view(func: Any) -> bool:
    """Whether the operator's schema says that it returns views of its arguments."""
    returns = [each.alias_info for each in schema_of(func).returns]
    aliases = any(alias is not None and not alias.is_write for alias in returns)
    # `lift_fresh`, which makes a tensor of Python data, has the signature of a view.
    return aliases and "lift_fresh" not in schema_of(func).name


def _digest(values: Sequence[Any]) -> str:
    """A hash of the tensors in `values`; "" if there are none, or none with readable memory."""
    digest, found = xxhash.xxh3_128(), False
    for value in tree_leaves(values):
        local = local_part(value, value)
        if type(local) not in (torch.Tensor, nn.Parameter):
            continue
        if local.is_meta or local.layout is not torch.strided or local.is_quantized:
            continue
        found = True
        plain = local.detach().resolve_conj().resolve_neg().cpu().contiguous()
        digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        if plain.numel():
            # A contiguous tensor of one element may have any strides, such as 0 if it was expanded.
            flat = plain.as_strided((plain.numel(),), (1,))
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest() if found else ""


def _described(given: Sequence[Any]) -> str:
    """The text of the arguments that have the same text in every process, such as numbers."""
    plain = (bool, int, float, complex, str, torch.dtype, torch.device, torch.memory_format)
    text = ", ".join(repr(each) for each in given if isinstance(each, plain))
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... {xxhash.xxh3_64_hexdigest(text.encode())}"
