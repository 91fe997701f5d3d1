"""`trainsafe_fuzz`: a test whose Points hypothesis chooses.

The decorated test is a hypothesis test: `@example`, `@seed`, profiles and the options of
hypothesis' pytest plugin apply to it.  This plugin runs it in the context `fuzzing`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis.errors import Unsatisfiable

from pytest_trainsafe.config.settings import SETTINGS
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError, DeclarationError
from pytest_trainsafe.fuzz.examples import MAX_FAILURES, Examples
from pytest_trainsafe.fuzz.health import require_mostly_valid
from pytest_trainsafe.fuzz.replay import Replay
from pytest_trainsafe.fuzz.runner import GIVEN
from pytest_trainsafe.fuzz.source import PointSource, point_source
from pytest_trainsafe.fuzz.strategy import MAX_WORLD_SIZE, points_of
from pytest_trainsafe.judges.metamorphic.relations import Relation
from pytest_trainsafe.judges.metamorphic.relations.offers import find_relations
from pytest_trainsafe.printable import printable
from pytest_trainsafe.sweep.namesakes import refuse_other_file
from pytest_trainsafe.sweep.signature import FUZZ, FUZZING

_PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
#: Health checks about time and size, which say nothing about examples that train models.
_SUPPRESSED = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)

Test = Callable[..., Any]


def trainsafe_fuzz(
    program: object,
    *,
    max_examples: int | None = None,
    derandomize: bool = True,
    max_world_size: int = MAX_WORLD_SIZE,
    relations: Sequence[Relation | str] = (),
    max_failures: int = MAX_FAILURES,
    **axes: object,
) -> Callable[[Test], Test]:
    """Makes a test function run at Points that hypothesis draws.

        @trainsafe_fuzz(gpt.train, max_examples=50, tp=..., cp=..., dtype=["float64", "bfloat16"])
        def test_gpt(candidate_trace, reference_trace):
            assert_trainsafe(candidate_trace, reference_trace)

    `program`, `max_world_size` and `axes` are those of `parallel_points`: an axis is given a list
    of values, one value, a range, or the literal `...`, for which its values are derived.  `axes`
    may also have settings of the marker `trainsafe`.

    The parameters `candidate_trace`, `reference_trace`, `trainsafe` and `point` are different for
    each example; other parameters are fixtures, shared by all examples.  If `max_examples` is None,
    hypothesis' profile sets the number of examples.  With `derandomize` the examples are the same
    in every run.  With and without it, failing examples are saved in hypothesis' database, and run
    first the next time.
    `relations` lists relations, or names of relations that the program offers.  At each Point,
    after the test function, `assert_same_by` is called with each relation that applies there.
    The first failure is reduced to the smallest Point that fails in the same way.  Then further
    examples search for failures that differ from it, until there are `max_failures`.
    Raises SweepError for an invalid axis, and ArgumentError for a relation that is not offered.
    """
    if type(max_failures) is not int or max_failures < 1:
        raise ArgumentError(f"max_failures takes an integer >= 1, not {shown(max_failures)}")
    if max_examples is not None and (type(max_examples) is not int or max_examples < 1):
        raise ArgumentError(
            f"max_examples takes an integer >= 1, or None for hypothesis' profile, not "
            f"{shown(max_examples)}"
        )
    source = point_source(program, max_world_size, axes)
    source.relations = find_relations(source.declaration.program, relations, "trainsafe_fuzz")

    def decorate(function: Test) -> Test:
        if not inspect.isfunction(function):
            raise ArgumentTypeError(
                f"@trainsafe_fuzz decorates a test function, not {shown(function)}"
            )
        if source.declaration.program.script is None:
            file = inspect.unwrap(function).__code__.co_filename
            refuse_other_file(source.declaration.program.path, file)
        example, takes = _example_of(function, source)
        # A relation needs no reference, so it is judged on a single device too.
        source.alone = bool(source.relations) and "reference_trace" not in takes
        test: Any = hypothesis.given(point=points_of(source))(example)
        if derandomize:
            test = hypothesis.seed(0)(test)
        # After the seed, which sets the database to None.
        test = _settings(source, max_examples)(test)
        setattr(test, FUZZ, tuple(axis.name for axis, _ in source.declaration.axes))
        setattr(test, FUZZING, functools.partial(fuzzing, source, takes, max_failures))
        return test  # type: ignore[no-any-return]  # what hypothesis makes has the type Any here

    return decorate


def _example_of(function: Test, source: PointSource) -> tuple[Test, frozenset[str]]:
    """Returns the function that hypothesis calls for each example, and a set of names.

    The names are those parameters of `function` whose values each example sets: a subset of GIVEN,
    which is `candidate_trace`, `reference_trace`, `trainsafe` and `point`.
    """
    parameters = inspect.signature(function).parameters
    takes = frozenset(parameters) & frozenset(GIVEN)

    @functools.wraps(function)
    def example(*args: object, point: Point, **fixtures: object) -> None:
        __tracebackhide__ = True
        if source.examples is None:
            raise ArgumentError(
                f"{function.__name__} is a fuzz test of pytest-trainsafe and cannot be called "
                "directly; run it with pytest and the plugin pytest-trainsafe"
            )
        named = others.bind(*args, **fixtures).arguments
        source.examples.run(point, functools.partial(function, **named))

    others = inspect.Signature([p for name, p in parameters.items() if name not in takes])
    drawn = inspect.Parameter("point", inspect.Parameter.KEYWORD_ONLY)
    whole = inspect.Signature([*others.parameters.values(), drawn])
    example.__signature__ = whole  # type: ignore[attr-defined]
    return example, takes


def _settings(source: PointSource, most: int | None) -> hypothesis.settings:
    """hypothesis' settings for the test: the profile's, without deadline and explain phase.

    `most` is the number of examples, None for that of the profile.
    """
    profile = hypothesis.settings()
    words: dict[str, Any] = {} if most is None else {"max_examples": most}
    if profile.database is not None:
        words["database"] = Replay(profile.database, source)
    return hypothesis.settings(
        profile,
        deadline=None,
        phases=[phase for phase in _PHASES if phase in profile.phases],
        report_multiple_bugs=False,
        suppress_health_check=[*profile.suppress_health_check, *_SUPPRESSED],
        **words,
    )


@contextlib.contextmanager
def fuzzing(
    source: PointSource, takes: frozenset[str], max_failures: int, item: pytest.Function
) -> Iterator[None]:
    """The context in which pytest runs a fuzz test: applies this run's settings, and cleans up.

    It fails the test for an invalid declaration, or if Points without a verdict are left, and skips
    it if this machine can run none of the drawn Points.
    """
    __tracebackhide__ = True

    def project_rule(point: Point, arguments: Mapping[str, object]) -> str | None:
        reason: str | None = item.ihook.pytest_trainsafe_valid_point(
            point=point, arguments=dict(arguments), config=item.config
        )
        return reason

    try:
        source.begin(item.config.stash[SETTINGS], project_rule)
        if HealthCheck.filter_too_much not in hypothesis.settings().suppress_health_check:
            require_mostly_valid(source.space)
        source.examples = Examples(item, source, takes, max_failures)
        try:
            yield
        finally:
            source.examples.publish()
        source.examples.conclude()
    except Unsatisfiable:
        if source.examples is None or not source.examples.runner.unavailable:
            raise
        pytest.skip(printable("; ".join(source.examples.runner.unavailable)))
    except DeclarationError as error:
        pytest.fail(f"{item.nodeid}: {error}", pytrace=False)
    finally:
        source.end()
