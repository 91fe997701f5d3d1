"""`observe()`: what an ordinary test or a rank observes, and how it is switched on."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.record.hooks.compiled import compiled_regions
from pytest_trainsafe.record.observe.meta import TIME, checked
from pytest_trainsafe.record.observe.names import library_of
from pytest_trainsafe.record.observe.observer import Observer
from pytest_trainsafe.record.observe.operators import Operators
from pytest_trainsafe.record.observe.patching.catalogue import Target, catalogue, optimizers
from pytest_trainsafe.record.observe.patching.libraries import named, overrides
from pytest_trainsafe.record.observe.patching.patches import Patches
from pytest_trainsafe.record.observe.patching.selection import (
    Selection,
    Wanted,
    names_in,
    resolved,
)
from pytest_trainsafe.record.observe.steps import Sample, Steps, sample_of
from pytest_trainsafe.trace.observed.events import Listener, Plain
from pytest_trainsafe.trace.observed.table import Table, TableBuilder

#: The most names that a note of unseen modules lists.
_LISTED = 8


class Observation:
    """What is observed in a `with` block.  `table` may be read during the block and after it."""

    def __init__(
        self,
        apis: tuple[str, ...] | None,
        variables: tuple[str, ...] | None,
        listeners: Sequence[Listener],
        steps: Steps,
        fixed: Mapping[str, Plain],
    ) -> None:
        self._selection = Selection(apis)
        self._patches = Patches()
        libraries = {"torch", *(library_of(name) for name in apis or ())}
        self.observer = Observer(
            self._selection,
            Wanted(variables),
            listeners,
            fixed,
            steps,
            frozenset(libraries),
            self._found_class,
            self._note_compiled,
            self._found_type,
            self._loaded,
        )
        #: The libraries that are observed whole: modules of them may be imported later.
        self._whole: list[str] = []
        #: The methods of libraries that are patched by name, by their class and attribute.
        self._methods: dict[tuple[Any, str], Target] = {}
        self._unseen: dict[str, None] = {}
        self._compiled: dict[str, None] = {}
        self._regions = 0

    @property
    def unseen(self) -> tuple[str, ...]:
        """What was asked for and could not be observed, a sentence for each."""
        return (*self._unseen, *self.observer.variables.unseen)

    def meta(self, **values: object) -> None:
        """Set meta variables of what follows.

        `step`, `epoch` and `microbatch` are the program's own count of these: each new `step`
        ends the step before it.  Others are recorded as "user.NAME" with each call, and as
        attributes of the variable "program".  A value is a number, a truth value, a text or None.
        """
        observer, given = self.observer, checked(values)
        step = given.pop("step", None)
        if step is not None and step != observer.steps.now:
            if observer.steps.now is not None and not observer.steps.automatic:
                observer.end_step()
            observer.begin_step(int(step))
        elif step is not None:
            observer.steps.automatic = False
        for name, value in given.items():
            if name in TIME:
                setattr(observer.meta, name, value)
                observer.steps.counts_epochs &= name != "epoch"
            else:
                observer.meta.set_user(name, value)
                observer.variables.set_program(name, value)

    def follow(self, name: str, thing: Any) -> None:
        """Follow the plain attributes of an object of the program's own as "program.NAME"."""
        if not name:
            raise ArgumentError("follow('', ...): the name is a text that is not empty")
        try:
            self.observer.variables.follow(name, thing)
        except TypeError:
            raise ArgumentTypeError(
                f"follow({name!r}, ...): a {type(thing).__name__} cannot be followed; pass an "
                "object with attributes, or report a number by meta(...)"
            ) from None

    def model(self, model: nn.Module, prefix: str | None = None) -> None:
        """Follow a model before its first call; with a prefix, as a part of the whole model."""
        self.observer.variables.model(model, prefix)

    @contextlib.contextmanager
    def active(self, operators: bool = False) -> Iterator[Observation]:
        """Observe until the end."""
        self._regions = compiled_regions()
        with contextlib.ExitStack() as around:
            around.enter_context(self._patches.active(self.observer, self._targets()))
            if operators:
                around.enter_context(Operators(self.observer))
            try:
                yield self
            finally:
                self._note_unseen()

    def _targets(self) -> list[Target]:
        found = [target for target in catalogue() if self._takes(target)]
        for api in self._selection.apis or ():
            if not any(_is_of(target, api) for target in found):
                more = self._named(api)
                found += more
                if inspect.ismodule(resolved(api)):
                    self._whole.append(api)
                if not more:
                    self._unseen[f"{api}: there is no such API in this process"] = None
        return found

    def _named(self, api: str) -> list[Target]:
        """The targets of a name that the catalogue lacks."""
        found = named(api)
        self._methods.update(
            ((each.owner, each.attribute), each) for each in found if each.is_method
        )
        return found

    def _loaded(self) -> None:
        """Modules were imported: those of libraries that are observed whole are patched."""
        for api in self._whole:
            self._patches.add(self._named(api))

    def _takes(self, target: Target) -> bool:
        role = target.role
        follows = self.observer.variables.following
        if role.always or (follows and role.compares):
            return True
        return self._selection.may_take(target.owner, target.method, target.api)

    def _found_class(self) -> None:
        """An optimizer was made: its class may be new."""
        self._patches.add(target for target in optimizers() if self._takes(target))

    def _found_type(self, cls: type) -> None:
        """An object of a class is used for the first time: it may override observed methods."""
        if self._methods:
            self._patches.add(overrides(cls, self._methods))

    def _note_compiled(self) -> None:
        """Note the modules that run inside compiled regions.  Called at the end of each step."""
        if compiled_regions() > self._regions:
            for name in self.observer.variables.never_called(self.observer.called):
                self._compiled[name] = None

    def _note_unseen(self) -> None:
        count = compiled_regions() - self._regions
        if count <= 0:
            return
        self._note_compiled()
        names = list(self._compiled)
        inside = f", with {', '.join(names[:_LISTED])}" if names else ""
        inside += f" and {len(names) - _LISTED} more modules" if len(names) > _LISTED else ""
        self._unseen[
            f"calls inside of {count} compiled region{'s'[: count > 1]}{inside}: "
            "torch.compile traces the functions, and their wrappers do not run"
        ] = None


def _is_of(target: Target, api: str) -> bool:
    """Whether an API that was asked for is this target, or has it below it."""
    return _selection_of(api).may_take(target.owner, target.method, target.api)


@functools.lru_cache(maxsize=1024)
def _selection_of(api: str) -> Selection:
    return Selection((api,))


@contextlib.contextmanager
def observe(
    apis: Sequence[str] | None = None,
    *,
    variables: Sequence[str] | None = None,
    sample: tuple[int, int] = (1, 0),
    operators: bool = False,
    listeners: Iterable[Listener] = (),
) -> Iterator[TableObservation]:
    """Observe the API calls and the training state of this process: `observation.table`.

    For a test that trains in its own process, without ranks:

        with observe() as observation:
            train()
        table = observation.table

    `apis` names functions, methods, classes, modules or libraries ("torch.optim.Adam.step",
    "torch.distributed", "deepspeed"); None takes all of PyTorch that matters for training.
    `variables` has patterns of what is followed ("model.*.grad", "torch.nn.Parameter.data",
    "optimizer.*"); None follows all, () nothing.  With `sample` = (every, warm_up), the first
    `warm_up` steps are recorded and then every `every`-th.  `operators` also records each operator
    of torch.  `listeners` receive the events as they happen.

    Each step of the first optimizer that steps ends a training step, unless the program marks
    steps by `observation.meta(step=...)`.

    Nothing is patched outside of the block.  Raises ArgumentError for arguments of another form,
    and ProgramError inside of another observation.
    """
    names, wanted = names_in(apis, "apis"), names_in(variables, "variables")
    receivers = tuple(listeners)
    for each in receivers:
        if not callable(getattr(each, "step_ended", None)):
            raise ArgumentError(
                f"observe(listeners=...): a {type(each).__name__} is no Listener; it lacks "
                "step_ended, and needs entered, left and changed too"
            )
    observation = TableObservation(names, wanted, receivers, sample_of(sample))
    with observation.active(operators):
        try:
            yield observation
        finally:
            steps = observation.observer.steps
            if not steps.automatic and steps.now is not None:
                observation.observer.end_step()


class TableObservation(Observation):
    """An Observation that collects a table in memory."""

    def __init__(
        self,
        apis: tuple[str, ...] | None,
        variables: tuple[str, ...] | None,
        listeners: tuple[Listener, ...],
        sample: Sample,
    ) -> None:
        self._builder = TableBuilder()
        fixed = {"rank": 0, "world_size": 1}
        steps = Steps(sample, automatic=True)
        super().__init__(apis, variables, (self._builder, *listeners), steps, fixed)

    @property
    def table(self) -> Table:
        """What was observed so far."""
        return self._builder.table()
