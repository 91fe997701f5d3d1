"""A RunSpec: the one complete description of a Run.

It is the key under which Runs are shared and cached, the message that is sent to the ranks, and
part of the manifest of the trace that they write.  A new property of Runs is a new field here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from pytest_trainsafe.core.mesh import Mesh, MeshAxis
from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.core.prepared import prepared
from pytest_trainsafe.core.schedule import Schedule
from pytest_trainsafe.core.tensor_id import TensorId

#: In low-precision dtypes the relative size of the noise is larger than this.
LOW_PRECISION = 1e-5

#: Added to the seed for each further sample of noise; much larger than seeds that users choose.
SAMPLE_STRIDE = 2**40

Recording = Literal["sketch", "full"]
WantedDevice = Literal["auto", "cpu", "cuda"]


class Rewrite(msgspec.Struct, frozen=True, array_like=True):
    """The values that replace those of one tensor: normally distributed, of the logical `shape`.

    Values are clamped to `low` and `high`, if given, so that a softmax's output stays positive, for
    example.
    """

    shape: tuple[int, ...]
    mean: float
    std: float
    low: float | None = None
    high: float | None = None


class Observe(msgspec.Struct, frozen=True, array_like=True):
    """Which API calls and variables the ranks observe, as `observe()` takes them.

    None stands for all APIs or all variables; an empty `variables` stands for none.  The first
    `warm_up` steps are recorded, and then every `every`-th step.  `contents` names the arguments
    and results whose tensors are read, as "API arg.NAME", "API self", "API result" or "API *", in
    which the API may be a pattern; of other tensors, only the shape, the dtype and the flags are
    recorded.  None stands for all.
    """

    apis: tuple[str, ...] | None = None
    variables: tuple[str, ...] | None = None
    every: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1
    warm_up: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    operators: bool = False
    contents: tuple[str, ...] | None = None


class Resume(msgspec.Struct, frozen=True, omit_defaults=True):
    """A checkpoint after the first `step` steps of a Run.

    If `of` is None, the Run saves the checkpoint.  Otherwise `of` is the Run that saved it; this
    Run loads it and continues the training.  `function` is the import path of the function that
    saves or loads, and `file` the file that defines it; both are "" if the program does so itself,
    in its `ctx.save` and `ctx.load` blocks.
    """

    step: Annotated[int, msgspec.Meta(ge=1, le=2**48)]
    of: RunSpec | None = None
    function: str = ""
    file: str = ""


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a Run is: a program at a Point in one dtype, and what to record.

    Runs with equal specs are the same Run.

    What is run:
        program      the import path "package.module:function", or a script's name
        file         where the program is defined, for modules that cannot be imported by name
        script       the path of a script that runs as `__main__` with `script_args`, "" for none
        arguments    the program's keyword arguments, as JSON with sorted keys
        axes, mesh   the Point, without the axis dtype, and the program's own mesh as
                     `Mesh.declared` gives it; `point` joins them
        dtype        the rung at which the program computes: a dtype, or a rung of a project
        rung         the import path of a project's rung, "" for one of this package
        seed, device, timeout (in seconds)
        inputs       files and variables ("$NAME") that the program reads
        repeat       0, or 1, 2, ... to repeat the same Run
        environ      variables that are set when the ranks' processes start; they override those of
                     the test
        checkpoint   the folder of the replay checkpoint that the program continues from, "" to
                     train from the start
        sealed       whether clocks, the process id and os.urandom give the program the same values
                     in every Run
        steps        the number of steps that `ctx.steps` gives the program, None for its own
        resume       the checkpoint that the Run saves, or continues from; None for neither
        order        a permutation of the micro-batches of a step: `ctx.microbatches` gives the
                     number order[n] instead of n; () changes nothing
        schedule     when asynchronous collectives complete, and which rank runs next: the ranks
                     then share a process; None for what the launcher does by itself

    How it is trusted and changed:
        trusted       whether it is a reference: torch.compile then compiles nothing, and later
                      pytest runs may use the recorded trace
        perturbation  the relative size of the noise injected into every leaf module's output and
                      gradient, 0 for none; `sample` numbers independent noise
        rewrite       the activations and gradients to replace, by name
        replay        the Run whose decisions, such as top-k choices, are used instead of its own

    What is recorded:
        record       "full" for all values; "sketch" for sketches (random projections) of most
                     large tensors
        keep         the ids of tensors that are recorded with all values even with "sketch"
        kinds        the kinds of tensors, empty for all
        modules      `fnmatch` patterns of modules whose activations are recorded
        watch_casts  whether casts to a narrower dtype and to FP8 are recorded
        adapters     import paths of the framework adapters that the recorder asks
        rng          whether ranks record their random draws in the RNG ledger
        operators    the step whose operators are recorded one by one, None for none
        observe      the API calls and changes of state that ranks observe, None for none
        instruments  import paths of further instruments, beside those of this package's judges
    """

    program: str
    file: str = ""
    script: str = ""
    script_args: tuple[str, ...] = ()
    arguments: str = "{}"
    axes: tuple[tuple[str, AxisValue], ...] = ()
    mesh: tuple[MeshAxis, ...] = ()
    dtype: str
    rung: str = ""
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] = 0
    device: WantedDevice = "auto"
    timeout: float = 0.0
    inputs: tuple[str, ...] = ()
    repeat: int = 0
    environ: tuple[tuple[str, str], ...] = ()
    checkpoint: str = ""
    sealed: bool = False
    steps: Annotated[int, msgspec.Meta(ge=1, le=2**48)] | None = None
    resume: Resume | None = None
    order: tuple[Annotated[int, msgspec.Meta(ge=0, le=2**31)], ...] = ()
    schedule: Schedule | None = None
    trusted: bool = False
    perturbation: float = 0.0
    sample: int = 0
    rewrite: tuple[tuple[str, Rewrite], ...] = ()
    replay: RunSpec | None = None
    record: Recording = "full"
    keep: tuple[TensorId, ...] = ()
    kinds: tuple[str, ...] = ()
    modules: tuple[str, ...] = ("*",)
    watch_casts: bool = False
    adapters: tuple[str, ...] = ()
    rng: bool = True
    operators: int | None = None
    observe: Observe | None = None
    instruments: tuple[str, ...] = ()

    @property
    def point(self) -> Point:
        """The Point that the program runs at."""
        return Point(self.axes, Mesh.of(self.mesh))

    @property
    def keywords(self) -> dict[str, object]:
        """The program's keyword arguments."""
        found: dict[str, object] = json.loads(self.arguments)
        return found

    @property
    def title(self) -> str:
        """The name of a test's Run in a message: "the candidate at tp=2, in float64"."""
        if self.trusted:
            alone = self.point.world_size == 1
            who = f"the reference, {'on a single device' if alone else f'at {self.point}'}"
        else:
            who = f"the candidate at {self.point}"
        how = ""
        if self.rewrite:
            how = ", with rewritten values, to find the code at fault"
        elif self.perturbation:
            how = ", under noise of the size of rounding"
        if self.checkpoint:
            how += ", replayed from a checkpoint"
        if self.environ:
            how += f", repeated with {' '.join('='.join(pair) for pair in self.environ)}"
        if self.resume is not None:
            does = "saving a checkpoint" if self.resume.of is None else "resumed"
            how += f", {does} after step {self.resume.step - 1}"
        if self.order:
            how += f", with micro-batches in the order {', '.join(map(str, self.order))}"
        if self.schedule is not None:
            how += f", with asynchronous collectives that complete at {self.schedule.output}"
        return f"{who}, in {self.dtype}{how}"

    @property
    def follows(self) -> tuple[RunSpec, ...]:
        """The Runs that end before this one: whose decisions it replays, or checkpoint it loads."""
        of = None if self.resume is None else self.resume.of
        return tuple(spec for spec in (self.replay, of) if spec is not None)

    @property
    def first_step(self) -> int:
        """The number of the first step: 0, or in a resumed Run the first after the checkpoint."""
        return self.resume.step if self.resume is not None and self.resume.of is not None else 0

    @property
    def noisy_operations(self) -> bool:
        """Whether noise is added to the result of every operation instead of modules' outputs.

        True if the number of the sample is odd, with two exceptions: in low precision, and for Runs
        that rewrite values between modules.  In low precision, noise changes a value by a whole
        rounding step, so noise on many operations would be larger than their rounding errors.
        """
        return bool(self.sample % 2 and self.perturbation < LOW_PRECISION and not self.rewrite)

    @property
    def noise_seed(self) -> int:
        """The seed of the noise, different for every sample."""
        return self.seed + self.sample * SAMPLE_STRIDE

    def records(self, kind: str) -> bool:
        """Whether tensors of this kind are recorded; an empty selection records all."""
        return not self.kinds or kind in self.kinds

    def identity(self) -> dict[str, object]:
        """Every field that determines what the Run records, as plain data: all but the timeout."""
        data: dict[str, object] = msgspec.to_builtins(_without_timeout(self))
        return data


prepared(RunSpec)  # it contains itself


def arguments_of(keywords: Mapping[str, object]) -> str:
    """Keyword arguments as the JSON text that a RunSpec holds."""
    return json.dumps(dict(keywords), sort_keys=True)


def _without_timeout(spec: RunSpec) -> RunSpec:
    replay = None if spec.replay is None else _without_timeout(spec.replay)
    resume = spec.resume
    if resume is not None and resume.of is not None:
        resume = msgspec.structs.replace(resume, of=_without_timeout(resume.of))
    return msgspec.structs.replace(spec, timeout=0.0, replay=replay, resume=resume)
