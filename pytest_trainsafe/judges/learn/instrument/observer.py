"""Receives every patched call of a process, and reports calls and changes to listeners."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.compat.compiler import compiles, skipped
from pytest_trainsafe.compat.modules import own_buffers
from pytest_trainsafe.core.code_files import project_line
from pytest_trainsafe.judges.learn.events.events import Call, Change, Listener, Plain, Value
from pytest_trainsafe.judges.learn.events.slips import slip_change, slip_text, text_change
from pytest_trainsafe.judges.learn.instrument.binding import Binder
from pytest_trainsafe.judges.learn.instrument.describe import Describer, cut
from pytest_trainsafe.judges.learn.instrument.facts import Objects
from pytest_trainsafe.judges.learn.instrument.frames import (
    Frame,
    Thread,
    outside_of_modules,
    repeats,
)
from pytest_trainsafe.judges.learn.instrument.meta import Meta
from pytest_trainsafe.judges.learn.instrument.modes import Modes
from pytest_trainsafe.judges.learn.instrument.names import error_name, method_api
from pytest_trainsafe.judges.learn.instrument.patching.catalogue import Role, Target
from pytest_trainsafe.judges.learn.instrument.patching.selection import Contents, Selection, Wanted
from pytest_trainsafe.judges.learn.instrument.slips.ledger import Ledger, watched
from pytest_trainsafe.judges.learn.instrument.slips.moments import wraps
from pytest_trainsafe.judges.learn.instrument.state.slots import Slot
from pytest_trainsafe.judges.learn.instrument.state.variables import Variables
from pytest_trainsafe.judges.learn.instrument.steps import Steps
from pytest_trainsafe.record.clock import in_backward

#: Kinds of calls that recompute a forward if they happen during a backward.
_FORWARDS = ("module", "checkpoint")

#: The methods of an optimizer with which it is recorded whether there are gradients.
_HOLDS = ("step", "zero_grad")

#: Arguments that a collective writes to: nothing is in them yet when it is called.
_FILLED = ("arg.output", "arg.tensor_list", "arg.gather_list", "arg.object_list")

#: APIs that are recorded only if they are named.
_QUIET = ("torch.nn.init", "torch.randperm", "torch.distributed.tensor.DTensor.from_local")

#: The role of torch's operators: calls are recorded, and nothing else is done.
_OPERATOR = Role()


class Observer:
    """Observes the patched calls of a process; `patches.py` passes each of them to `run`.

    `selection` says which APIs are recorded, `wanted` which attributes of training objects, and
    `contents` the tensors of which arguments and results are read.
    `fixed` has the facts that are recorded with every call, such as the rank.  The observer calls
    `found` after the creation of an object whose class may be new, such as an optimizer; `ended` at
    the end of each step; `first` at the first call of a patched method of each class; and `loaded`
    after modules were imported.
    """

    def __init__(
        self,
        selection: Selection,
        wanted: Wanted,
        contents: Contents,
        listeners: Sequence[Listener],
        fixed: Mapping[str, Plain],
        steps: Steps,
        libraries: frozenset[str],
        found: Callable[[], None],
        ended: Callable[[], None],
        first: Callable[[type], None] = lambda cls: None,
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        self._selection = selection
        self._contents = contents
        #: Calls that are many and say little are recorded only if they are named.
        self._named = any(each.startswith(_QUIET) for each in selection.apis or ())
        self._listeners = tuple(listeners)
        #: The methods of the listeners, since looking them up takes time at each event.
        self._entered = [each.entered for each in listeners]
        self._left = [each.left for each in listeners]
        self._changed = [each.changed for each in listeners]
        self._libraries = libraries
        self._found = found
        self._ended = ended
        self._first = first
        self._loaded = loaded
        self._modules = 0
        self._types: weakref.WeakSet[type] = weakref.WeakSet()
        self.meta = Meta(fixed)
        self.steps = steps
        objects = self._objects = Objects()
        self.describer = Describer(
            objects,
            lambda module: self.variables.name_of(module),
            lambda parameter: self.variables.is_known(parameter),
        )
        self.variables = Variables(objects, self.describer, wanted)
        #: The line of the project at which each slip was first noticed, by the slip's text.
        self.places: dict[str, str] = {}
        self._slips = watched(wanted, self._slip, self._text, self.variables, objects)
        #: The ids of the modules whose calls were seen.  Others may run only in compiled code.
        self.called: set[int] = set()
        self._modes = Modes()
        self._thread = Thread()
        self._threads = 0
        self._lock = threading.RLock()
        self._binders: dict[tuple[int, type | None], tuple[Binder, object]] = {}
        self._initialised = False
        self._loaders: dict[int, Any] = {}
        self.meta.step = steps.now
        # If torch.compile is at work, it must not compile this package's code.
        plainly: Any = torch.compiler.disable
        self._enter_plainly: Callable[..., Frame | None] = plainly(self._enter)
        self._leave_plainly: Callable[..., None] = plainly(self._leave)
        skipped(Observer.run)

    # Calls.

    def run(
        self, target: Target, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Call the original function, observe the call and return the result.

        `target` says what is observed: the API's name, and its effects.
        """
        compiling = compiles()
        frame = (self._enter_plainly if compiling else self._enter)(target, original, args, kwargs)
        if frame is None:
            return original(*args, **kwargs)
        leave = self._leave_plainly if compiling else self._leave
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            leave(frame, target, None, error)
            raise
        leave(frame, target, result, None)
        return result

    def _enter(
        self, target: Target, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Frame | None:
        """Begin to observe a call, and return its frame; None for a call that is not observed.

        Calls that this package makes are not observed, nor those of an optimizer that only wraps
        another one (`wraps`), nor those that are a part of the call around them (`repeats`).
        """
        thread = self._thread
        if thread.busy:
            return None
        role, api = target.role, target.api
        thing = args[0] if target.is_method and args else None
        if role.kind in ("used", "step") and isinstance(thing, Optimizer) and wraps(thing):
            return None
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self._loaded()
        if thing is not None and type(thing) not in self._types:
            self._types.add(type(thing))
            self._first(type(thing))
        if thing is not None and role.kind != "next":
            api = method_api(type(thing), target.method, self._libraries)
        outer = thread.frames[-1] if thread.frames else None
        if outer is not None and repeats(outer, api, thing, target):
            return None
        thread.busy = True
        frame = Frame(api, target.method, thing)
        try:
            frame.training = outer.training if outer else None
            if role.kind == "module":
                assert isinstance(thing, nn.Module)
                frame.training = thing.training
                self.called.add(id(thing))
                if outside_of_modules(thread.frames):
                    self._initialised = True
                    self.variables.model(thing)
                    if self.steps.recording and not in_backward():
                        name = self.variables.path_of(thing)
                        self._modes.ran(name, thing, torch.is_grad_enabled())
            elif role.kind in ("used", "step"):
                self._use(thing)
            frame.phase = self._phase(role.phase, role.kind, outer, frame.training)
            if self.steps.recording:
                if role.compares:
                    self._compare(thread)
                if self._selection.takes(api) and (self._named or not api.startswith(_QUIET)):
                    frame.call = self._call(thread, frame, target, original, args, kwargs)
            thread.frames.append(frame)
            if frame.call is not None:
                self._tell(self._entered, frame.call)
            if self._slips is not None:
                self._watch(self._slips, frame, target, args, kwargs)
        except BaseException:
            if thread.frames and thread.frames[-1] is frame:
                thread.frames.pop()
            raise
        finally:
            thread.busy = False
        return frame

    def _leave(
        self, frame: Frame, target: Target, result: object, error: BaseException | None
    ) -> None:
        thread, role, call = self._thread, target.role, frame.call
        thread.busy = True
        try:
            if role.kind == "made" and error is None:
                self._use(frame.thing)
                self._found()
                if isinstance(frame.thing, Optimizer):
                    self.describer.made(frame.thing)
                    if self._slips is not None and not wraps(frame.thing):
                        self._slips.made(frame.thing)
            elif role.kind in ("iter", "next") and error is None:
                self._iterated(role.kind, frame.thing, result)
            if self.steps.recording:
                if role.compares:
                    self._compare(thread, role.exact)
                elif isinstance(frame.thing, nn.Module) and own_buffers(frame.thing):
                    self.variables.compare_buffers(frame.thing, self._telling(thread))
            if frame.moment is not None and self._slips is not None:
                self._slips.left(frame.moment, result, error is not None)
            if call is not None:
                if error is not None:
                    call.exception = error_name(type(error))
                else:
                    read = "result" in self._contents.of(call.api)
                    self.describer.put("result", result, call.values, read=read)
                    if role.kind == "step" and isinstance(frame.thing, Optimizer):
                        named = self.variables.name_of_thing(frame.thing)
                        self.describer.put_stepped(named, self._modes.take(), call.values)
                self._tell(self._left, call)
        finally:
            while thread.frames and thread.frames.pop() is not frame:
                pass
            thread.busy = False
        if role.kind == "step" and error is None and self.steps.ends_with(frame.thing):
            self.end_step(fresh=True)

    def _watch(self, slips: Ledger, frame: Frame, target: Target, args: Any, kwargs: Any) -> None:
        kind = slips.kind(target)
        if kind:
            frames = reversed(self._thread.frames)
            outer = next((each.moment for each in frames if each.moment is not None), None)
            given = args[1:] if target.is_method else args
            frame.moment = slips.entered(kind, frame.api, frame.thing, given, kwargs, outer)

    def _call(
        self,
        thread: Thread,
        frame: Frame,
        target: Target,
        original: Callable[..., Any],
        args: Any,
        kwargs: dict[str, Any],
    ) -> Call:
        if thread.number is None:
            with self._lock:
                thread.number, self._threads = self._threads, self._threads + 1
        meta = self.meta.now(frame.phase, frame.training)
        call = Call(frame.api, meta, thread.innermost(), thread.number)
        values, reads = call.values, self._contents.of(frame.api)
        if target.is_method and args:
            holds = target.method in _HOLDS and isinstance(frame.thing, Optimizer)
            groups = target.role.kind == "step"
            read = "self" in reads
            self.describer.put_self(frame.thing, values, groups=groups, holds=holds, read=read)
            args = args[1:]
        put = self.describer.put
        given = dict(self._binder(target, original, frame.thing).places(args, kwargs))
        if given.get("arg.closure") is not None:
            # Its gradients are computed in the call.
            for name in ("has_gradients", "stale", "ungraded"):
                values.pop(f"self.{name}", None)
        communicates = frame.api.startswith("torch.distributed.")
        for place, value in given.items():
            if communicates:
                self._objects.unsettle(value)
            filled = communicates and place.startswith(_FILLED)
            put(place, value, values, read=place in reads and not filled)
        self.describer.put_together(given, values)
        return call

    def _binder(self, target: Target, original: Callable[..., Any], thing: object) -> Binder:
        cls = type(thing) if target.role.kind == "module" else None
        key = id(original), cls
        known = self._binders.get(key)
        if known is None:
            function = original if cls is None else cls.forward  # type: ignore[attr-defined]
            made = Binder(function, bound=target.is_method)
            known = self._binders[key] = made, original
        return known[0]

    # State.

    def _use(self, thing: object) -> None:
        if self.variables.following and thing is not None:
            self.variables.add(thing)

    def _iterated(self, kind: str, thing: object, result: object) -> None:
        if kind == "iter":
            self.variables.add(thing)
            counts = self.variables.loader_counts(thing)
            counts["epoch"], counts["batches"] = counts["epoch"] + 1, 0
            self._loaders[id(result)] = counts
            while len(self._loaders) > 64:
                del self._loaders[next(iter(self._loaders))]
            epoch = self.steps.epoch_of(thing, counts["epoch"])
            self.meta.epoch = self.meta.epoch if epoch is None else epoch
        elif id(thing) in self._loaders:
            self._loaders[id(thing)]["batches"] += 1

    def _compare(self, thread: Thread, exact: frozenset[str] = frozenset()) -> None:
        if self.variables.following:
            self.variables.compare(self._telling(thread), exact)

    def _telling(self, thread: Thread) -> Callable[[Slot, Value | None], None]:
        """A function that reports a change of an attribute to the listeners.

        It takes the attribute's Slot and its earlier value, None for a new attribute.  The report
        says that the innermost recorded call made the change.
        """
        known: tuple[Call | None, Mapping[str, Plain]] | None = None

        def tell(slot: Slot, before: Value | None) -> None:
            nonlocal known
            if known is None:  # most comparisons find no change
                known = thread.innermost(), self._meta_now()
            by, meta = known
            names = slot.object, slot.type, slot.attribute
            self._tell(self._changed, Change(*names, slot.value, meta, before, by))

        return tell

    @property
    def watches_slips(self) -> bool:
        """Whether slips are watched for."""
        return self._slips is not None

    def _slip(self, name: str, detail: str) -> None:
        """Report a slip, as a change that the innermost recorded call made."""
        if self.steps.recording:
            text, by = cut(slip_text(name, detail)), self._thread.innermost()
            if text not in self.places:
                self.places[text] = project_line()
            self._tell(self._changed, slip_change(text, self._meta_now(), by))

    def _text(self, name: str, text: str) -> None:
        """Report a text on the training, which is known in the innermost recorded call."""
        if self.steps.recording:
            by = self._thread.innermost()
            self._tell(self._changed, text_change(name, cut(text), self._meta_now(), by))

    def end(self) -> None:
        """The observation ends: report what is known only now."""
        if self._slips is not None:
            self._slips.ended()

    def _meta_now(self) -> Mapping[str, Plain]:
        frames = self._thread.frames
        frame = frames[-1] if frames else None
        phase = self._base if frame is None else frame.phase
        return self.meta.now(phase, frame.training if frame else None)

    # Steps.

    def begin_step(self, number: int) -> None:
        """Begin the step `number`, which the program marks."""
        self.meta.step = number
        was = self.steps.recording
        self.steps.begin(number)
        if self.steps.recording and not was:
            self._rebase()

    def end_step(self, fresh: bool = False) -> None:
        """End the step.  `fresh` says that no code ran since the state was last compared."""
        thread = self._thread
        number, recorded = self.steps.now, self.steps.recording
        thread.busy = True
        try:
            if recorded and number is not None:
                meta = self._meta_now()

                def sampled(slot: Slot) -> None:
                    names = slot.object, slot.type, slot.attribute
                    self._tell(self._changed, Change(*names, slot.value, meta, changed=False))

                self.variables.sample(self._telling(thread), sampled, fresh)
                if self._slips is not None:
                    self._tell(self._changed, slip_change("", meta))
                with self._lock:
                    for listener in self._listeners:
                        listener.step_ended(number)
        finally:
            thread.busy = False
        self._initialised = True
        self._ended()
        self.steps.end()
        self.meta.step = self.steps.now
        if self.steps.recording and not recorded:
            self._rebase()

    def _rebase(self) -> None:
        self._thread.busy = True
        try:
            self.variables.rebase()
        finally:
            self._thread.busy = False

    # Phases.

    @property
    def _base(self) -> str:
        """The phase of code outside of every patched call."""
        return "" if self._initialised else "init"

    def _phase(self, own: str, kind: str, outer: Frame | None, training: bool | None) -> str:
        around = outer.phase if outer else self._base
        if own:
            return own
        if in_backward():
            return "recompute" if kind in _FORWARDS or around == "recompute" else "backward"
        if kind == "module" and around not in ("forward", "evaluation", "recompute"):
            return "forward" if training and torch.is_grad_enabled() else "evaluation"
        if kind == "checkpoint":  # it runs its function without gradients
            return "forward" if torch.is_grad_enabled() else around
        return around

    def operator(self, api: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call an operator of torch, which no wrapper calls, and record it under the name `api`."""
        if not self.steps.recording:
            return function(*args, **kwargs)
        return self.run(Target(torch, "", api, _OPERATOR), function, args, kwargs)

    def _tell(self, receivers: Sequence[Callable[[Any], None]], event: Any) -> None:
        with self._lock:
            for receive in receivers:
                receive(event)
