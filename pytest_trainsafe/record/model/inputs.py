"""Records the inputs that a program passes to its model: exact hashes, and the tensors.

Called by the recorder, which installs its hooks on the watched parts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe.compat.distributed.parallel import active_wrapper
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.record.clock import Clock, ProgramError, in_backward
from pytest_trainsafe.record.hooks.outputs import tensors_in
from pytest_trainsafe.record.lines.origins import Origins
from pytest_trainsafe.record.lines.sites import Sites
from pytest_trainsafe.record.tensors import local_values, own_layout, tensor_hash
from pytest_trainsafe.trace.facts import Site
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import InputEvent
from pytest_trainsafe.trace.writer import RankWriter

#: Hashes and measures of tensors, as in an InputEvent.
Measure = tuple[float, float] | None
Identity = tuple[tuple[str, ...], tuple[Measure, ...]]


#: The part that has the inputs of a micro-batch whose batch the program names; no part's key.
_BATCH = "ctx.batch"


class ModelInputs:
    """The inputs of one rank's model.

    Only the first part that runs in a micro-batch has inputs of the model; later parts get theirs
    from other parts.
    """

    def __init__(
        self,
        spec: RunSpec,
        clock: Clock,
        writer: RankWriter,
        sites: Sites,
        origins: Origins | None = None,
    ) -> None:
        self.spec = spec
        self.clock = clock
        self.writer = writer
        self.sites = sites
        self.origins = origins
        self._calls = 0
        self._fed = ""
        self._given: Counter[tuple[int, str]] = Counter()
        self._entered: tuple[str, Identity, dict[object, object], Site | None] | None = None
        #: The keys of parts that the program watches as such.
        self._whole: set[str] = set()

    def start_step(self) -> None:
        """Forgets the calls of the previous step."""
        self._calls = 0
        self._given.clear()
        self._entered = None

    def start_microbatch(self) -> None:
        """Forgets which part of the model took the inputs of the previous micro-batch.

        If the program enters the new micro-batch inside the model's forward, also writes the inputs
        of that forward.
        """
        self._fed = ""
        if self._entered is not None:
            self._feed(*self._entered)

    def on_input(self, part: nn.Module, key: str, level: str, *, whole: bool) -> Any:
        """Returns the hook to call before the forward of `part`, which `key` names.

        `level` is the level that the program gave to `ctx.watch`: "microbatch", or "step" if it
        marks whole steps only.  `whole` says whether the program watches the part itself, not a
        container of it: an entry of a micro-batch runs it once.
        """
        if whole:
            self._whole.add(key)

        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            # A copy of the model, or a recomputation of all of it, has no inputs of its own.
            if module is not part or self.clock.step is None or in_backward():
                return
            self._note_sync(module)
            if self.origins is not None:
                self.origins.model_called()
            tensors = [tensor for _, tensor in tensors_in([args, kwargs])]
            hashes = tuple(map(tensor_hash, tensors))
            measured = level == "step" or not self.spec.records("input")
            measures = self._measures(tensors) if measured else ()
            if level == "step":
                self._fed = self._fed or key
                if key == self._fed:
                    # The number is only a counter; it does not identify the data.
                    self.writer.add(InputEvent(self.clock.step, self._calls, hashes, measures))
                    self._calls += 1
                self.sites.note("model", (self.clock.step, self._calls))
                return
            if self.clock.open is None:
                called = self.sites.here("model")
                self._entered = key, (hashes, measures), {**dict(enumerate(args)), **kwargs}, called
            else:
                self._feed(key, (hashes, measures), {**dict(enumerate(args)), **kwargs})

        return hook

    def batch(self, value: object) -> None:
        """Writes the tensors of a batch as the inputs of the open step or micro-batch.

        What the program passes to its model in this micro-batch is then not written.
        """
        if self.clock.step is None:
            raise ProgramError(
                "ctx.batch was called outside ctx.step; call it in each `with ctx.step():`, after "
                "the micro-batch is entered if the program marks its micro-batches"
            )
        given = value if isinstance(value, list | tuple | dict) else [value]
        named = given if isinstance(given, dict) else dict(enumerate(given))
        tensors = [tensor for _, tensor in tensors_in(named)]
        microbatch, whole = self.clock.open, self.clock.open is None
        measured = whole or not self.spec.records("input")
        measures = self._measures(tensors) if measured else ()
        number = self._calls if microbatch is None else microbatch
        self._calls += whole
        self._fed = _BATCH
        self.writer.add(
            InputEvent(self.clock.step, number, tuple(map(tensor_hash, tensors)), measures)
        )
        if microbatch is not None and self.spec.records("input"):
            self._write_inputs(self.clock.step, microbatch, named)

    def on_return(self) -> Any:
        """Returns the hook to call after a part's forward."""

        def hook(*_: object) -> None:
            self._entered = None

        return hook

    def _feed(
        self,
        key: str,
        identity: Identity,
        given: dict[object, object],
        called: Site | None = None,
    ) -> None:
        """Writes the inputs of a part in the open micro-batch, if it is the first part to run.

        `key` names the part, `identity` has the hashes and measures of its input tensors, and
        `given` its arguments, by position and by keyword.  `called` is the line of the program
        that called the part.  If `called` is None, the line is taken from the present stack.
        """
        step, microbatch = self.clock.step, self.clock.open
        assert step is not None
        assert microbatch is not None
        if key in self._whole:
            self.clock.forward(key)
        self.sites.note("model", (step, microbatch), site=called)
        # The inputs of later parts come from other parts, not from the program.
        self._fed = self._fed or key
        if key != self._fed:
            return
        self.writer.add(InputEvent(step, microbatch, *identity))
        if self.spec.records("input"):
            self._write_inputs(step, microbatch, given)

    def _note_sync(self, part: nn.Module) -> None:
        """Records whether the DistributedDataParallel that runs now, if any, reduces gradients.

        It does in the backward of this forward, unless the forward runs inside of `no_sync`.  It is
        `part`, or around it.
        """
        around: Any = part
        if not isinstance(part, DistributedDataParallel):
            around = active_wrapper()
        if around is None or not torch.is_grad_enabled():
            return
        if around.require_backward_grad_sync:
            self.sites.note("sync", self.clock.step)
        else:
            self.sites.write_constructed()  # among them is the line that calls no_sync

    def _measures(self, tensors: Sequence[torch.Tensor]) -> tuple[Measure, ...]:
        """A measure of each tensor; none of a rung's own numbers, which need not have a norm."""
        enclosed = rung_named(self.spec.dtype).encloses
        return () if enclosed else tuple(map(_measure, tensors))

    def _write_inputs(self, step: int, microbatch: int, given: dict[object, object]) -> None:
        """Writes the inputs that the program passes to its model.

        `given` has the arguments of the forward, by position and by keyword.
        On a later stage of a pipeline only integer inputs are the program's (tokens, labels); the
        others come from the previous stage.
        """
        first = self.spec.point.coordinates(self.writer.rank)["pp"] == 0
        for place, tensor in tensors_in(given, "input"):
            if not first and (tensor.is_floating_point() or tensor.is_complex()):
                continue
            call = self._given[microbatch, place]
            self._given[microbatch, place] += 1
            where = TensorId(step, microbatch, "input", "", place, call)
            layout, source = own_layout(tensor, self.spec.point.sizes) or ((), "default")
            self.writer.add_tensor(where, local_values(tensor), layout, source)
            if self.origins is not None:
                self.origins.note("input", place, tensor)


def _measure(tensor: torch.Tensor) -> Measure:
    """The norm and one projection of a tensor of finite real numbers; None for any other tensor.

    Two tensors that differ by rounding differ in both by rounding, too.
    """
    values = local_values(tensor)
    if not values.is_floating_point() or values.is_meta or values.layout != torch.strided:
        return None
    flat = values.to(torch.float64).flatten()
    weights = torch.arange(flat.numel(), dtype=torch.float64, device=flat.device).cos_()
    norm, projection = float(flat.norm()), float(flat @ weights)
    return (norm, projection) if math.isfinite(norm) and math.isfinite(projection) else None
