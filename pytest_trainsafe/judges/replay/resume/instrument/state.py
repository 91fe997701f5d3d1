"""Records the state of a training that is not in recorded tensors: counters, schedules, RNG states.

It is written at the start of each step and at the end, in Runs that save a checkpoint or continue
from one.
"""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
import xxhash
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler

from pytest_trainsafe.judges.replay.resume.instrument.objects import Objects, named
from pytest_trainsafe.judges.replay.rng.instrument.drawing import Drawing
from pytest_trainsafe.record.instrument import Instrument, Recording, WatchedModel
from pytest_trainsafe.record.tensors import tensor_hash
from pytest_trainsafe.record.training.clipping import Clip
from pytest_trainsafe.record.training.optimizer import stepping
from pytest_trainsafe.trace.facts import (
    ClipLimit,
    EpochRead,
    KeptWeights,
    Part,
    StateEntry,
    TrainingState,
)

#: The attributes of schedulers that hold their position in the schedule.
_SCHEDULE = ("last_epoch", "T_cur", "T_i", "num_bad_epochs", "cooldown_counter", "best")

#: Maximum length of the text of a name or value, in characters.
_LONGEST = 1024


class StateRecorder(Instrument):
    """Writes a `TrainingState` when called; does nothing in a Run without `spec.resume`."""

    name = "state"
    after: ClassVar = {
        "rng": "it reads the states that the ledger knows",
        "checkpoint": "the state at a checkpoint is read before a test's function saves it",
    }

    def __init__(self, recorder: Recording) -> None:
        spec = recorder.spec
        self._wanted = spec.resume is not None
        #: The steps after which other weights are recorded: at the checkpoint, and one step later.
        self._looks = (spec.resume.step, spec.resume.step + 1) if spec.resume is not None else ()
        self._beside = recorder.beside
        self._clock = recorder.clock
        self._writer = recorder.writer
        self._rng = recorder.instrument(Drawing).ledger
        self._objects = Objects(self._read)
        self._parameters: Mapping[str, nn.Parameter] = {}
        self._optimizer: Any = None

    def around(self) -> contextlib.AbstractContextManager[None]:
        """Finds the schedulers, scalers and samplers that are created in this context."""
        return self._objects.found() if self._wanted else contextlib.nullcontext()

    def watch(self, watched: WatchedModel) -> None:
        """Reads the state of the optimizer from now on."""
        self._parameters, self._optimizer = watched.parameters, watched.optimizer

    def before_step(self) -> None:
        """Writes the current state, and at the checkpoint the weights beside the model."""
        self.write()
        self._look()

    def after_step(self) -> None:
        """Writes the weights beside the model, as the program may end after this step."""
        if self._clock.steps_done in self._looks[1:]:
            self._look()

    def before_clip(self, clip: Clip) -> None:
        """Writes the limit of a clip function that the program calls in a step."""
        if self._wanted and self._clock.step is not None and clip.limit is not None:
            self._writer.add(ClipLimit(self._clock.step, clip.function, clip.limit))

    def _look(self) -> None:
        if self._clock.steps_done not in self._looks:
            return
        found: dict[str, list[str]] = {}
        for name, weights in self._beside.weights():
            text = " ".join(tensor_hash(each) for each in weights)
            found.setdefault(name[:_LONGEST], []).append(xxhash.xxh3_64_hexdigest(text.encode()))
        hashes = {name: tuple(each) for name, each in found.items()}
        self._writer.add(KeptWeights(self._clock.steps_done, hashes))

    def finish(self) -> None:
        """Writes the state at the end."""
        self.write()

    def write(self) -> None:
        """Writes the current state; called between two steps."""
        if not self._wanted:
            return
        entries = tuple(
            StateEntry(part, name[:_LONGEST], text)
            for part, name, value in self._entries()
            if (text := _text(value)) is not None
        )
        self._writer.add(TrainingState(self._clock.steps_done, entries))

    def _read(self, sampler: Any) -> None:
        """Writes the epoch whose order a sampler gives, unless it gives one order in all epochs."""
        epoch = _text(getattr(sampler, "epoch", None))
        if epoch is not None and getattr(sampler, "shuffle", True):
            samplers = named(self._objects.of(Sampler))
            for name in (name for name, each in samplers if each is sampler):
                self._writer.add(EpochRead(name[:_LONGEST], epoch))

    def _entries(self) -> Iterator[tuple[Part, str, object]]:
        optimizers = [] if self._optimizer is None else stepping(self._optimizer)
        for number, optimizer in enumerate(optimizers):
            which = f"optimizer {number}, " if len(optimizers) > 1 else ""
            yield from self._of_optimizer(which, optimizer)
        for name, scheduler in named(self._objects.of(LRScheduler)):
            for attribute in _SCHEDULE:
                yield "lr_schedule", f"{name}.{attribute}", getattr(scheduler, attribute, None)
        for name, scaler in named(self._objects.of(GradScaler)):
            for key, value in scaler.state_dict().items():
                yield "scaler", f"{name}.{key.strip('_')}", value
        for name, parameter in self._parameters.items():
            if not parameter.requires_grad:
                yield "frozen", name, "frozen"
        for name, state in self._rng.states().items():
            yield "rng", name, state

    def _of_optimizer(self, which: str, optimizer: Any) -> Iterator[tuple[Part, str, object]]:
        for number, group in enumerate(getattr(optimizer, "param_groups", ())):
            for key, value in sorted(group.items()):
                if key != "params":
                    part: Part = "step_counter" if key == "step" else "lr_schedule"
                    yield part, f"{which}group {number}: {key}", value
        state = getattr(optimizer, "state", None)
        if not isinstance(state, Mapping):
            return
        for name, parameter in self._parameters.items():
            held = state.get(parameter)
            for key, value in held.items() if isinstance(held, Mapping) else ():
                if not isinstance(value, torch.Tensor):  # tensors are in the trace
                    yield "step_counter" if key == "step" else "moment", f"{name}.{key}", value


def _text(value: object) -> str | None:
    """The text of a number or a string, or of a list or tuple with up to eight of these.

    None for any other value.  A tensor with one element counts as a number.
    """
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else None
    if isinstance(value, tuple | list) and len(value) <= 8:
        parts = [_text(each) for each in value]
        return None if None in parts else f"({', '.join(filter(None, parts))})"
    if isinstance(value, str):
        return value[:_LONGEST]
    return repr(value) if isinstance(value, bool | numbers.Real) else None
