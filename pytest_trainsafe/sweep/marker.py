"""Reads and checks the arguments of `@pytest.mark.trainsafe(program, axis=[...], ...)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_trainsafe.config.table import OPTIONS
from pytest_trainsafe.core.axes import AXES, Axis, check_values
from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.mesh.sweep_axes import PROBLEM_AXES, axes_over, mesh_axis
from pytest_trainsafe.core.point import AxisValue
from pytest_trainsafe.core.usage import listing, nearest, shown
from pytest_trainsafe.errors import SweepError
from pytest_trainsafe.sweep.expectation import Expectation
from pytest_trainsafe.sweep.plain import why_not_plain
from pytest_trainsafe.sweep.program import Program, resolve
from pytest_trainsafe.sweep.signature import SETTING_WORDS, SIGNATURE

#: The name of a program's parameter for the number of optimizer steps.
STEPS = "steps"


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a marker declares: the program, the axes in order, and settings.

    The reference is a pipeline of `reference_pp` stages (1: a single device), and receives
    `reference_args`; the candidate does not.  `settings` maps fields of Settings to the marker's
    values.  `expect` has the marker's expectations of random numbers.  `healthy` is whether
    invariants may be learned from the test.
    """

    program: Program
    axes: tuple[tuple[Axis, tuple[AxisValue, ...]], ...] = ()
    args: Mapping[str, object] = field(default_factory=dict)
    candidate_args: Mapping[str, object] = field(default_factory=dict)
    reference_pp: int = 1
    reference_args: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    expect: tuple[Expectation, ...] = ()
    healthy: bool = False


def read_marker(positional: Sequence[object], keywords: Mapping[str, object]) -> Declaration:
    """The Declaration of a marker's arguments.  Raises DeclarationError if they are invalid."""
    if len(positional) != 1:
        got = f"{len(positional)} positional arguments" if positional else "no program"
        raise SweepError(f"the marker takes one program, then keywords, but has {got}: {SIGNATURE}")
    program = _placed(resolve(positional[0]), keywords.get("mesh"))
    axes = tuple(
        _axis(program, name, given) for name, given in keywords.items() if name not in SETTING_WORDS
    )
    swept = [axis.name for axis, _ in axes]
    args = _arguments(program, "args", keywords.get("args", {}), swept)
    candidate_args = _arguments(
        program, "candidate_args", keywords.get("candidate_args", {}), swept
    )
    _require(program, args, swept)
    reference_pp, reference_args = _reference(program, keywords.get("reference", {}), swept)
    return Declaration(
        program,
        axes,
        args,
        candidate_args,
        reference_pp,
        reference_args,
        settings=_settings(keywords),
        expect=_expectations(keywords.get("expect")),
        healthy=_healthy(keywords.get("healthy", False)),
    )


def _placed(program: Program, mesh: object) -> Program:
    """The program with the marker's mesh, which is the only way to give a script a mesh."""
    if mesh is None:
        return program
    if not isinstance(mesh, Mesh):
        raise SweepError(f"mesh takes a Mesh, such as Mesh('pp', 'dp', 'tp'), not {shown(mesh)}")
    return replace(program, traits=replace(program.traits, mesh=mesh))


def _axis(program: Program, name: str, given: object) -> tuple[Axis, tuple[AxisValue, ...]]:
    if isinstance(given, (list, tuple)):
        values = tuple(given)
    elif isinstance(given, (bool, int, float, str)):
        values = (given,)
    else:
        raise SweepError(
            f"axis {shown(name)} takes a value or a list of values, not {shown(given)}"
            f"{nearest(name, SETTING_WORDS)}"
        )
    mesh = program.traits.mesh
    axis = mesh_axis(mesh, name)
    if axis is None and name in program.parameters:
        axis = program.parameters[name].axis(values)
        if name == STEPS:
            axis = axis._replace(minimum=1)
    if axis is None and name == STEPS:
        raise SweepError(
            f"steps= is how many optimizer steps both runs take, but program {program.name} does "
            f"not take {'arguments' if program.script is not None else 'it'}: "
            + (
                "give a script its number of steps in Script(path, args=[...])"
                if program.script is not None
                else "give it a parameter steps=1, and let it enter `with ctx.step():` as often"
            )
        )
    if axis is None:
        known = [*axes_over(mesh), *program.parameters, *SETTING_WORDS]
        raise SweepError(
            f"unknown axis {shown(name)}{nearest(name, known)}\n"
            f"  axes: {listing(axes_over(mesh))}\n"
            f"  parameters of {program.name}: {listing(program.parameters) or 'none'}\n"
            f"  settings: {listing(SETTING_WORDS)}"
        )
    return axis, check_values(axis, values)


def _arguments(
    program: Program, word: str, given: object, swept: Iterable[str]
) -> dict[str, object]:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise SweepError(f"{word} takes a dict of the program's arguments, not {shown(given)}")
    if given and program.script is not None:
        raise SweepError(
            f"{word} gives values to a function's parameters; give a script its arguments in "
            "Script(path, args=[...])"
        )
    for name in given:
        if name in swept:
            raise SweepError(
                f"{word} has {shown(name)}, which is already an axis of this test; "
                "remove one of them"
            )
        if name and name == program.context:
            raise SweepError(
                f"{word} has {shown(name)}, but that parameter is the context, which "
                f"pytest-trainsafe itself passes to the program; remove {shown(name)} from {word}"
            )
        if name not in program.parameters and not program.open_ended:
            raise SweepError(
                f"{word} has {shown(name)}, which program {program.name} does not take"
                f"{nearest(name, program.parameters)}; "
                f"its parameters: {listing(program.parameters) or 'none'}"
            )
    if reason := why_not_plain(given):
        raise SweepError(f"{word}: {reason}")
    return dict(given)


def _require(program: Program, args: Mapping[str, object], swept: Iterable[str]) -> None:
    """Raises SweepError unless every parameter without a default has a value in both Runs."""
    how = {*axes_over(program.traits.mesh)} - PROBLEM_AXES
    shared = {name for name in swept if name not in how}
    for parameter in program.parameters.values():
        name = parameter.name
        if not parameter.required or name in args or name in shared:
            continue
        if name in swept:
            raise SweepError(
                f"parameter {name!r} of program {program.name} needs a default, because the "
                f"reference run is called without the axis {name!r}"
            )
        raise SweepError(
            f"program {program.name} needs a value for {name!r}; give args={{{name!r}: ...}}"
        )


def _reference(
    program: Program, given: object, swept: Iterable[str]
) -> tuple[int, dict[str, object]]:
    """The number of pipeline stages of the reference, and the arguments that only it receives."""
    if not isinstance(given, Mapping):
        raise SweepError(f"reference takes a dict such as {{'pp': 2}}, not {shown(given)}")
    others = {name: value for name, value in given.items() if name != "pp"}
    axes = {*AXES, *axes_over(program.traits.mesh)}
    for name in others:
        if name in axes and name not in program.parameters:
            raise SweepError(
                f"reference has the axis {name!r}, but the reference run uses a single device or, "
                "with 'pp', one device for each pipeline stage; no other axis is possible"
            )
    stages = AXES["pp"].check(given.get("pp", 1))
    if int(stages) > 1 and not program.traits.mesh.members("pp"):
        raise SweepError(
            f"reference={{'pp': {stages}}} needs an axis with the role 'pp' in the program's mesh, "
            f"whose axes are {listing(program.traits.mesh.axes)}"
        )
    return int(stages), _arguments(program, "reference", others, swept)


def _healthy(given: object) -> bool:
    if not isinstance(given, bool):
        raise SweepError(
            f"healthy takes True or False, not {shown(given)}; with True, --trainsafe-learn may "
            "learn invariants from the test"
        )
    return given


def _expectations(given: object) -> tuple[Expectation, ...]:
    """The marker's expectations of random numbers."""
    if given is None:
        return ()
    each = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    wrong = next((one for one in each if not isinstance(one, Expectation)), None)
    if wrong is not None:
        raise SweepError(
            'expect takes a list of what expect_rng returns, such as [expect_rng("noise", '
            f'same="tp")], not {shown(wrong)}'
        )
    return each


def _settings(keywords: Mapping[str, object]) -> dict[str, object]:
    """Maps fields of Settings to the marker's values; settings that are None are left out."""
    return {
        option.field: option.marker(keywords[option.field])
        for option in OPTIONS
        if option.marker is not None and keywords.get(option.field) is not None
    }
