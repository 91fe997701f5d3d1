"""Events for facts of a Run that need several fields.

Written by the recorder.  A fact of one word or sentence is a `NoteEvent` of `schema`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from pytest_trainsafe.core.layout import Count
from pytest_trainsafe.core.tensor_id import Step
from pytest_trainsafe.trace.fields import fault_of_fields

#: A name, a path, or a file with its line.
Text = Annotated[str, msgspec.Meta(max_length=4096)]

CastDtype = Literal["float64", "float32", "float16", "bfloat16", "float8"]


class Annotations(msgspec.Struct, frozen=True, tag="annotations", omit_defaults=True):
    """The annotations from which a rank determined layouts.

    `file` is the absolute path of their file, "" if a program passes them as data. `cp_order`
    is the order that they declare for context parallelism, and `model` the model that they
    apply to.  `given` is whether the program passes any annotation.
    """

    file: Text = ""
    cp_order: Text = ""
    model: Text = ""
    given: bool = False


class Cast(msgspec.Struct, frozen=True, tag="cast"):
    """A cast in the program that limits the precision at which the Run can be judged.

    `dtype` is "float8" for the rank's first cast to FP8.  Otherwise it is the narrowest dtype that
    the rank casts a float64 tensor to.  `at` is the "file:line" of the cast.
    """

    dtype: CastDtype
    at: Text

    def __str__(self) -> str:
        return f"{self.dtype} {self.at}"


class Settings(msgspec.Struct, frozen=True, tag="settings", omit_defaults=True):
    """The settings of one group of an optimizer's parameters, after the program.

    With a `step`, they are those with which the first optimizer of this step stepped.
    `values` has each number as `repr(float)`, each switch as "True" or "False", and the numbers of
    a tuple with spaces between them.  `parameters` names the model's parameters in the group; it is
    empty if the optimizer holds others, such as flat copies.
    """

    values: dict[Text, Text]
    parameters: tuple[Text, ...] = ()
    step: Step | None = None


#: Names of parameters.
_Names = Annotated[tuple[Text, ...], msgspec.Meta(max_length=2**20)]


class Unheld(msgspec.Struct, frozen=True, tag="unheld", omit_defaults=True):
    """The watched parameters that no optimizer of this rank holds, such as an average of weights.

    A rank has this event, perhaps without names, only if each tensor that its optimizers hold is a
    watched parameter or the master copy of one; otherwise it is not known which they hold.
    """

    parameters: _Names = ()


class Marked(msgspec.Struct, frozen=True, tag="marked", omit_defaults=True):
    """The program set the attribute `name` of its `parameters` to `value`, which is a switch.

    Frameworks decide by such marks what happens to a gradient, such as `sequence_parallel`.
    """

    name: Text
    value: bool
    parameters: _Names = ()


#: When `zero_grad` is called: before the backwards of a step, also between two steps; after a
#: backward, which it undoes; or after the optimizer's step.
ZeroedMoment = Literal["before", "backward", "stepped"]


class Zeroed(msgspec.Struct, frozen=True, tag="zeroed", omit_defaults=True):
    """A line of the program calls `zero_grad`, in `step` or, between two steps, before it.

    `at` and `user` are as in `Site`.  `kept` has the first of the `left` parameters of the watched
    model that the call does not concern.
    """

    step: Step
    moment: ZeroedMoment
    at: Text
    user: Text = ""
    kept: _Names = ()
    left: Count = 0

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return _fault_of_lines(self.at, self.user)


class Overwritten(msgspec.Struct, frozen=True, tag="overwritten", omit_defaults=True):
    """The values that the program gave its parameters, which `ctx.initialize` then replaced.

    `hashes` maps the names of watched parameters to hashes of these values on the rank.
    `unwritten` names those whose memory no operation wrote in place: the values of another tensor,
    such as `torch.randn` made, or memory that holds nothing yet, as of `torch.empty`.
    `since` names those that the program changed in place between `ctx.initialize` and `ctx.watch`.
    """

    hashes: dict[Text, Text]
    unwritten: _Names = ()
    since: _Names = ()


class Changed(msgspec.Struct, frozen=True, tag="changed", omit_defaults=True):
    """In a step, the line `at` changed `parameters` in place, which no optimizer of the rank holds.

    The paths of buffers are among them.  A line that changes what an optimizer holds, outside of
    the optimizer's step, has an event of its own.
    `at` is the innermost line of the project, or of an installed package if the project has none on
    the stack.  `caller` is the line that led to it in the function that entered the step, "" if
    that is `at` or not known.  `operation` is the operation of torch, such as "lerp_".  `stepped`
    is whether an optimizer had stepped before in the same step, and `numbers` has the numbers that
    the operation was given, such as the weight of "lerp_".
    """

    step: Step
    at: Text
    operation: Text
    caller: Text = ""
    stepped: bool = False
    numbers: Annotated[tuple[float, ...], msgspec.Meta(max_length=4)] = ()
    parameters: _Names = ()

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return _fault_of_lines(self.at, self.caller)


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """Attributes of a module or an optimizer that are numbers and changed during the program.

    `values` has each one as `repr(float)`, as it is after the program.
    """

    owner: Text
    values: dict[Text, Text]


class Altered(msgspec.Struct, frozen=True, tag="altered"):
    """A module ran with parameters that had changed since its step began."""

    step: Step
    microbatch: Count
    module: Text


class Caller(msgspec.Struct, frozen=True, tag="caller", omit_defaults=True):
    """The module `by` runs the module `module`.

    `at` is the line of the program that first calls `module`, "" if it is not known.
    """

    module: Text
    by: Text
    at: Text = ""

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return _fault_of_lines(self.at)


class Applied(msgspec.Struct, frozen=True, tag="applied", omit_defaults=True):
    """The forward of `module` applies the autograd function `name` of the program.

    `forward` and `backward` are the lines at which these methods of it begin.  `read` has the
    modules that `module` calls, and from whose outputs its own code computes the argument.
    """

    module: Text
    name: Text
    forward: Text
    backward: Text
    read: tuple[Text, ...] = ()

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return _fault_of_lines(self.forward, self.backward)


class SetUp(msgspec.Struct, frozen=True, tag="set_up", omit_defaults=True):
    """The line `at` of the program put a module into its place in the model.

    If constructors did, it is the line that calls the outermost of them.  `inside` is the
    program's line in the innermost of them, if the program wrote that constructor; else "".
    """

    module: Text
    at: Text
    inside: Text = ""

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return _fault_of_lines(self.at, self.inside)


MadeWhat = Literal["input", "loss", "output"]


class Made(msgspec.Struct, frozen=True, tag="made", omit_defaults=True):
    """The line `at` of the program made a tensor.

    `what` is "input" for an input of the model, with its key path as `name`; "output" for the
    output of the module `name`; and "loss" for a tensor whose `backward` is called.  `of` has, for
    a loss, other lines that made the tensors from which `at` computes it, the nearest first;
    lines that ran before the model was called are not among them, unless their result requires
    gradients.
    """

    what: MadeWhat
    name: Text
    at: Text
    of: Annotated[tuple[Text, ...], msgspec.Meta(max_length=16)] = ()

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return _fault_of_lines(self.at, *self.of)


#: The kind of a piece of state: a check of `assert_resumable`, without the prefix "resume:".
Part = Literal["moment", "step_counter", "lr_schedule", "scaler", "frozen", "rng"]

#: Maximum number of pieces of state in one event; there are a few for each parameter.
_MOST = 2**20


class StateEntry(msgspec.Struct, frozen=True, array_like=True):
    """One piece of state that is not a tensor: its kind, name ("StepLR.last_epoch") and value."""

    part: Part
    name: Text
    value: Text


class TrainingState(msgspec.Struct, frozen=True, tag="training_state"):
    """The state of the training, other than tensors, after `steps` steps."""

    steps: Count
    entries: Annotated[tuple[StateEntry, ...], msgspec.Meta(max_length=_MOST)]

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return fault_of_fields((), states=self.of("rng").values())

    def of(self, part: Part) -> dict[str, str]:
        """Maps names to values, for the entries of the kind `part`, such as "lr_schedule"."""
        return {entry.name: entry.value for entry in self.entries if entry.part == part}


class EpochRead(msgspec.Struct, frozen=True, tag="epoch_read"):
    """A sampler begins to give the order of an epoch: its name, and the number of the epoch."""

    sampler: Text
    epoch: Text


class KeptWeights(msgspec.Struct, frozen=True, tag="kept_weights"):
    """Weights that a program keeps beside the watched model, after `steps` steps.

    `hashes` maps a text, such as "the module Ema", to a hash of the weights of each such object.
    """

    steps: Count
    hashes: dict[Text, tuple[Text, ...]]


class ClipLimit(msgspec.Struct, frozen=True, tag="clip_limit"):
    """The limit of the norm that the program passes to a clip function in a step."""

    step: Step
    function: Text
    limit: float


class CheckpointEvent(msgspec.Struct, frozen=True, tag="checkpoint"):
    """The program has saved a checkpoint, or loaded one, after `steps` steps."""

    action: Literal["save", "load"]
    steps: Step


What = Literal[
    "model",
    "loss",
    "backward",
    "norm",
    "write",
    "alter",
    "step",
    "optimizer",
    "stepper",
    "steps",
    "wrapper",
    "mode",
    "watch",
    "group",
    "clear",
    "early",
    "sync",
    "no_sync",
]

Of = Literal["gradients", "norm"]

#: The most reductions of different sizes that a rank records for one line.
MAX_SIZES = 16

_LINE = re.compile(r"[^\x00-\x1f]+:\d{1,9}", re.ASCII)


class Reduction(msgspec.Struct, frozen=True, tag="reduction", omit_defaults=True):
    """A collective that may reduce gradients, or their norm: `of` says which.

    `call` is the collective with its operation, such as "all_reduce(SUM)"; `axes` are the mesh axes
    it acts over, and `site` is the line that calls it.  `caller` is the nearest line of another
    file on the call stack, "" for none: frameworks call collectives in functions of their own.
    `numel` counts the input elements; it is None if there are several input tensors.  `in_step` is
    true if an optimizer's step makes the call, after the main gradients were recorded.
    `asynchronous` is true if the caller passed `async_op=True`.
    """

    call: Text
    axes: tuple[Text, ...]
    site: Text
    caller: Text
    numel: Annotated[int, msgspec.Meta(ge=0, le=2**48)] | None = None
    of: Of = "gradients"
    in_step: bool = False
    asynchronous: bool = False

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return _fault_of_lines(self.site, self.caller)

    def __str__(self) -> str:
        of = " of one number" if self.numel == 1 else ""
        return f"{self.call}{of} over {' and '.join(self.axes)}"


#: The greatest number of ranks of a group, and of dimensions of a tensor.
_Members = Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=2**16)]
_Shape = Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]


class CollectiveEvent(msgspec.Struct, frozen=True, tag="collective_call", omit_defaults=True):
    """One call of a collective or point-to-point operation by this rank, recorded before it runs.

    `op` is the public name ("all_reduce"), `ranks` the members of the group, `reduce` the ReduceOp
    ("" for none), and `root` and `peer` the other global rank if the operation has one.
    `dtype` and `shape` are those of the input tensor; `shape` is None for several tensors, and
    `name` is the tensor's name if the recorder knows it ("decoder.weight.grad").
    `step` is None outside of steps, and `microbatch` outside of micro-batches.  `backward` says
    that the call was made while autograd ran.
    `site` is the caller's file:line outside of torch, and `user` the line of the user's code that
    led to it if the caller is in an installed package.  `caller` is the nearest line of another
    file that led to `site`, in Runs of a localisation.
    Collectives that C++ issues itself, such as the gradient buckets of DistributedDataParallel,
    have no event.
    """

    op: Text
    ranks: _Members
    site: Text
    step: Step | None = None
    microbatch: Count | None = None
    backward: bool = False
    reduce: Text = ""
    root: Count | None = None
    peer: Count | None = None
    dtype: Text = ""
    shape: _Shape | None = None
    name: Text = ""
    user: Text = ""
    caller: Text = ""

    def __str__(self) -> str:
        """The operation and how it reduces: "all_reduce(SUM)"."""
        return f"{self.op}({self.reduce})" if self.reduce else self.op

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return _fault_of_lines(self.site, self.user, self.caller)


class Site(msgspec.Struct, frozen=True, tag="site", omit_defaults=True):
    """A line of the program; `what` says what the line does.

    "model" calls the model; "loss" calls ctx.loss and "norm" ctx.grad_norm; "backward" starts a
    backward; "write" changes gradients in place after the backward; "step" calls the optimizer's
    step; "alter" changes parameters in place before a forward of the same step; "optimizer"
    constructs the optimizer, "stepper" defines the step of a class of optimizers that is the
    program's own, "steps" a function that this step calls, and "wrapper" constructs a wrapper that
    reduces gradients; "mode" puts a module into evaluation mode; "watch" calls ctx.watch; "group"
    makes a process group; "clear" clears gradients between two backwards of a step, and "early"
    changes them there in another way; "sync" calls a DistributedDataParallel so that its backward
    reduces gradients, and "no_sync" calls its no_sync.
    `at` is the innermost line outside of torch, "" for a "mode" whose line is not known.  `user`
    is the innermost line of the user's own code, if `at` is in an installed package.  `name` is
    the constructed class, the operation, or the module's path.  `factor` is the number by which a
    "write" multiplies the gradients, 0 if it does not or if the number is not known.
    """

    what: What
    at: Text
    user: Text = ""
    name: Text = ""
    factor: float = 0.0

    def fault(self) -> str:
        """What is wrong with this event; "" for a valid one."""
        return _fault_of_lines(self.at, self.user)


def _fault_of_lines(*lines: str) -> str:
    wrong = next((line for line in lines if line and not _LINE.fullmatch(line)), "")
    return f"{wrong[:80]!r} is not a line of a file" if wrong else ""
