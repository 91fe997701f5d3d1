"""`observe()` for tests, and the class that observes API calls and changes of state."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from pytest_trainsafe.compat.compiler import compiled_regions
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.judges.learn.events.events import Listener, Plain
from pytest_trainsafe.judges.learn.events.table import Table, TableBuilder
from pytest_trainsafe.judges.learn.instrument.meta import TIME, checked
from pytest_trainsafe.judges.learn.instrument.names import belongs, library_of
from pytest_trainsafe.judges.learn.instrument.observer import Observer
from pytest_trainsafe.judges.learn.instrument.operators import Operators
from pytest_trainsafe.judges.learn.instrument.patching.catalogue import (
    Target,
    catalogue,
    optimizers,
)
from pytest_trainsafe.judges.learn.instrument.patching.contexts import noting
from pytest_trainsafe.judges.learn.instrument.patching.libraries import named, overrides
from pytest_trainsafe.judges.learn.instrument.patching.patches import Patches
from pytest_trainsafe.judges.learn.instrument.patching.selection import (
    Contents,
    Selection,
    Wanted,
    names_in,
    resolved,
)
from pytest_trainsafe.judges.learn.instrument.steps import Sample, Steps, sample_of

#: The most names of modules that a note on compiled regions lists.
_LISTED = 8


class Observation:
    """Observes the calls and the state of this process in a `with` block of `active`.

    "To follow" an object is to record its state: changes, and a sample at the end of each step.
    """

    def __init__(
        self,
        apis: tuple[str, ...] | None,
        variables: tuple[str, ...] | None,
        listeners: Sequence[Listener],
        steps: Steps,
        fixed: Mapping[str, Plain],
        contents: tuple[str, ...] | None = None,
    ) -> None:
        self._selection = Selection(apis)
        self._patches = Patches()
        libraries = {"torch", *(library_of(name) for name in apis or ())}
        self.observer = Observer(
            self._selection,
            Wanted(variables),
            Contents(contents),
            listeners,
            fixed,
            steps,
            frozenset(libraries),
            self._found_class,
            self._note_compiled,
            self._found_type,
            self._loaded,
        )
        #: The libraries whose modules are all observed, including modules imported later.
        self._whole: list[str] = []
        #: The methods that are patched because `apis` names them, by their class and attribute.
        self._methods: dict[tuple[Any, str], Target] = {}
        self._unseen: dict[str, None] = {}
        self._compiled: dict[str, None] = {}
        self._regions = 0

    @property
    def unseen(self) -> tuple[str, ...]:
        """Phrases, one for each thing that was asked for but could not be observed."""
        return (*self._unseen, *self.observer.variables.unseen)

    def meta(self, **values: object) -> None:
        """Set meta variables, which are recorded with each later call and change.

        A meta variable is a named fact on the state of the training.  `step`, `epoch` and
        `microbatch` replace the observation's own counts; each new `step` ends the step before it.
        Other names are recorded as "user.NAME", and as attributes of an object called "program".  A
        value is a number, a bool, a str or None.
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
        """Record the attributes of `thing` that are numbers, bools or texts, as "program.NAME"."""
        if not name:
            raise ArgumentError("follow('', ...): the name must not be empty")
        try:
            self.observer.variables.follow(name, thing)
        except TypeError:
            raise ArgumentTypeError(
                f"follow({name!r}, ...): a {type(thing).__name__} cannot be followed; pass an "
                "object with attributes, or report a number by meta(...)"
            ) from None

    def model(self, model: nn.Module, prefix: str | None = None) -> None:
        """Record the state of a model, also before its first call.

        `prefix` is the model's name in a larger model of which it is a part, or None.
        """
        self.observer.variables.model(model, prefix)

    @contextlib.contextmanager
    def active(self, operators: bool = False) -> Iterator[Observation]:
        """Observe in the `with` block.  `operators` also records torch's operators."""
        self._regions = compiled_regions()
        with contextlib.ExitStack() as around:
            around.enter_context(self._patches.active(self.observer, self._targets()))
            around.enter_context(noting(self.observer.meta.contexts))
            if operators:
                around.enter_context(Operators(self.observer))
            try:
                yield self
                self.observer.end()
            finally:
                self._note_unseen()

    def _targets(self) -> list[Target]:
        found = [target for target in catalogue() if self._takes(target)]
        for api in self._selection.apis or ():
            # The catalogue has some classes of other libraries, such as their optimizers.
            # For torch, it selects the APIs.
            module = inspect.ismodule(resolved(api))
            library = module and not belongs(api, ("torch",))
            if library or not any(_is_of(target, api) for target in found):
                more = self._named(api)
                found += more
                if module:
                    self._whole.append(api)
                if not more:
                    self._unseen[f"{api}: there is no such API in this process"] = None
        return found

    def _named(self, api: str) -> list[Target]:
        """The functions and methods to patch for an API that the catalogue lacks."""
        found = named(api)
        self._methods.update(
            ((each.owner, each.attribute), each) for each in found if each.is_method
        )
        return found

    def _loaded(self) -> None:
        """Patch newly imported modules of the libraries that are observed completely."""
        for api in self._whole:
            self._patches.add(self._named(api))

    def _takes(self, target: Target) -> bool:
        role = target.role
        follows = self.observer.variables.following
        if role.always or (follows and role.compares):
            return True
        if role.judged and self.observer.watches_slips:
            return True
        return self._selection.may_take(target.owner, target.method, target.api)

    def _found_class(self) -> None:
        """Patch new classes of optimizers.  Called after an object was created."""
        self._patches.add(target for target in optimizers() if self._takes(target))

    def _found_type(self, cls: type) -> None:
        """Patch the methods of a class that override observed ones.  Called at its first use."""
        if self._methods:
            self._patches.add(overrides(cls, self._methods))

    def _note_compiled(self) -> None:
        """Note the modules that run only inside compiled regions.  Called at each step's end."""
        if compiled_regions() > self._regions:
            for name in self.observer.variables.never_called(self.observer.called):
                self._compiled[name] = None

    def _note_unseen(self) -> None:
        count = compiled_regions() - self._regions
        if count <= 0:
            return
        self._note_compiled()
        names = list(self._compiled)
        inside = f", with the modules {', '.join(names[:_LISTED])}" if names else ""
        inside += f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        self._unseen[
            f"calls inside of {count} compiled region{'s'[: count > 1]}{inside}: "
            "the wrappers that observe calls do not run in code that torch.compile compiled"
        ] = None


def _is_of(target: Target, api: str) -> bool:
    """Whether a function to patch is the API with this name, or lies below it."""
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
    """Observe the API calls and the training state of this process in a `with` block.

    Use this in a test that trains in its own process, without ranks:

        with observe() as observation:
            train()
        table = observation.table

    `apis` names functions, methods, classes, modules or libraries ("torch.optim.Adam.step",
    "torch.distributed", "deepspeed"); None stands for all of PyTorch that matters for training.
    `variables` has patterns of the state to record ("model.*.grad", "torch.nn.Parameter.data",
    "optimizer.*"); None stands for all, () for none.  With `sample` = (every, warm_up), the first
    `warm_up` steps are recorded, and then every `every`-th step.  With `operators`, each operator
    of torch is recorded too.  `listeners` receive the events as they happen.

    One optimizer counts the training steps: the one whose `step()` returns first.  Each of its
    `step()` calls ends a training step.  If the program calls `observation.meta(step=...)`, these
    calls mark the steps instead.

    Nothing is patched outside of the block.  Raises ArgumentError if an argument is not valid, and
    ProgramError if API calls are already being observed.
    """
    names, wanted = names_in(apis, "apis"), names_in(variables, "variables")
    receivers = tuple(listeners)
    for each in receivers:
        if not callable(getattr(each, "step_ended", None)):
            raise ArgumentError(
                f"observe(listeners=...): a {type(each).__name__} is not a Listener; a Listener "
                "has the methods entered, left, changed and step_ended"
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
    """An Observation that collects a table in memory.

    The table may be read while the observation is active, and afterwards.
    """

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
        """The table of the calls and changes that were observed so far."""
        return self._builder.table()
