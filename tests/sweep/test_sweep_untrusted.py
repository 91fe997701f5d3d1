"""Markers and sweep words may hold anything: each is a valid sweep or an error that says why."""

from __future__ import annotations

import functools
import re
import sys
import types

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_trainsafe.config.grammar import gather, parse_words
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.axes import AXES, MAX_INTEGER, MAX_POINTS
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import ArgumentError, DeclarationError
from pytest_trainsafe.launch import Script
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells
from pytest_trainsafe.sweep.signature import SETTING_WORDS
from pytest_trainsafe.sweep.validity import divides

DIGITS = "9" * 5000
#: No message is longer, even if it quotes a long value.
LONGEST_MESSAGE = 4000


def train(ctx, layers=2, name: str | None = None, rate=0.1, untyped=None):
    """A program whose signature is all that matters here."""


def open_ended(ctx, **anything):
    """A program that takes every keyword."""


def positional(ctx, data, /):
    """A program with a parameter that no keyword reaches."""


@functools.cache
def cached(ctx, layers=2):
    """A function behind a decorator that is not a function itself."""


def rows(*table):
    """Parameters with ids made from the expected words, because the inputs are unfit for an id."""
    return [pytest.param(*row, id=re.sub(r"[^a-zA-Z0-9]+", "-", row[1])[:40]) for row in table]


def attempt(make):
    """What `make` returns, or None and its DeclarationError's message, fit to be printed."""
    try:
        return make(), ""
    except DeclarationError as error:
        message = str(error)
    assert len(message) <= LONGEST_MESSAGE
    assert message.replace("\n", "").isprintable()
    return None, message


def itself():
    value: list[object] = []
    value.append(value)
    return value


def doubling(times):
    """A small object of nested lists whose repr contains "x" 2 ** times times."""
    value: list[object] = ["x"]
    for _ in range(times):
        value = [value, value]
    return value


def refused(*positional, **keywords):
    declared, message = attempt(lambda: read_marker(positional or (train,), keywords))
    assert declared is None
    return message


@pytest.mark.parametrize(
    ("path", "words"),
    rows(
        ("os:system", "is not a function but builtin_function_or_method"),
        ("json:JSONDecoder", "is not a function but type"),
        ("../x:y", "is not an import path"),
        (".a:f", "is not an import path"),
        ("os.:system", "is not an import path"),
        ("os:path.", "is not an import path"),
        ("os :system", "is not an import path"),
        ("os:path:join", "is not an import path"),
        ("os\0:system", "is not an import path"),
        ("a." * 200 + "b:f", "at most 255 characters"),
        (f"{__name__}:DIGITS", "is not a function but str"),
        (f"{__name__}:positional", "takes 'data' by position only"),
    ),
)
def test_a_program_that_is_no_function_of_a_module_is_refused(path, words):
    assert words in refused(path, tp=1)


def test_a_program_path_that_is_not_made_of_identifiers_imports_nothing(monkeypatch):
    imported: list[str] = []
    monkeypatch.setattr("importlib.import_module", imported.append)

    for path in ("../x:y", ".a:f", "a b:c", "a:b c", ":", "a:", ":b", "a::b", "a/b:c"):
        refused(path, tp=1)

    assert imported == []


def test_a_function_behind_a_decorator_is_a_program():
    assert read_marker((f"{__name__}:cached",), {"layers": 1}).program.file == __file__


@pytest.mark.parametrize(
    "raised", ["1 / 0", "raise SystemExit(3)", "int('9' * 5000)", "import not_there_at_all", "f(("]
)
def test_a_module_that_fails_to_import_is_named_with_its_error_and_line(
    tmp_path, monkeypatch, raised
):
    (tmp_path / "failing_program.py").write_text(f"import sys\n{raised}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    message = refused("failing_program:train", tp=1)

    assert "program 'failing_program:train' cannot be imported: " in message
    assert message.endswith(f"({tmp_path}/failing_program.py:2)")


def test_a_program_whose_module_raises_on_attribute_access_cannot_be_imported(monkeypatch):
    lazy = types.ModuleType("lazy_program")
    lazy.__getattr__ = lambda name: 1 // 0  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_program", lazy)

    assert "cannot be imported: ZeroDivisionError" in refused("lazy_program:train", tp=1)


@pytest.mark.parametrize(
    ("script", "words"),
    rows(
        (Script(5), "takes the path of a file as text, not 5"),  # type: ignore[arg-type]
        (Script(b"train.py"), "takes the path of a file as text, not b'train.py'"),  # type: ignore[arg-type]
        (Script("a\0b"), r"there is no script 'a\x00b'"),
        (Script(__file__, args="--lr 1"), "takes args as a list of words, not '--lr 1'"),
        (Script(__file__, args=[object()]), "args holds an object of type object"),  # type: ignore[list-item]
        (Script(__file__, args=itself()), "args holds [["),
        (Script(__file__, args=["a\0b"]), "a command line cannot contain"),
        (Script(__file__, args=["\ud800"]), "a command line cannot contain"),
        (Script(__file__, args=[10**5000]), "integers have at most 64 bits"),  # type: ignore[list-item]
        (Script(__file__, args=["x" * 200_000]), "the limit is 100000"),
    ),
)
def test_a_script_that_cannot_be_started_is_refused(script, words):
    assert words in refused(script, tp=1)


@pytest.mark.parametrize(
    ("value", "words"),
    rows(
        (itself(), "args: rate=[[[[...]]]] cannot be sent to the ranks; it is nested more than 32"),
        (doubling(1000), "nested more than 32 deep"),
        (doubling(30), "at most 100000 values in all"),
        ([0] * 200_000, "at most 100000 values in all"),
        ("x" * 2_000_000, "at most 1000000 characters in all"),
        (10**5000, "about 4983 digits cannot be sent to the ranks; an integer has at most 64 bits"),
        ("\ud800", "a lone surrogate"),
        ({"\ud800": 1}, "a lone surrogate"),
        ({1: 2}, "the keys of a dict must be text, and 1 is not"),
        ({"deep": [{(1, 2): 3}]}, "the keys of a dict must be text, and (1, 2) is not"),
        ([[object()]], "give None, bool, int, float, str, or lists and dicts"),
        (b"x", "give None, bool, int, float, str, or lists and dicts"),
    ),
)
def test_an_argument_that_cannot_be_sent_is_refused_with_a_short_quote(value, words):
    assert words in refused(args={"rate": value})


def test_arguments_of_only_the_candidate_or_the_reference_have_the_same_limits():
    for word in ("candidate_args", "reference"):
        assert f"{word}: rate=[[" in refused(**{word: {"rate": itself()}})


def test_arguments_within_the_limits_are_kept_unchanged():
    nan = float("nan")
    args = {"rate": nan, "untyped": [None, True, {"a": (1, -(2**63))}], "name": "naïve"}

    assert read_marker((train,), {"args": args}).args == args


def test_an_argument_for_the_context_parameter_is_refused():
    for program in (train, open_ended):
        assert "has 'ctx', but that parameter is the context" in refused(program, args={"ctx": 1})


@pytest.mark.parametrize(
    ("values", "words"),
    rows(
        (10**5000, "takes integers of at most 64 bits"),
        ([MAX_INTEGER + 1], "takes integers of at most 64 bits"),
        (float("nan"), "axis 'tp' takes an integer >= 1, not nan"),
        ([float("inf")], "takes an integer >= 1, not inf"),
        ([True], "takes an integer >= 1, not True"),
        ([None], "takes an integer >= 1, not None"),
        (itself(), "takes an integer >= 1, not [[["),
        (["x" * 10**6], "characters)"),
        (range(3), "takes a value or a list of values, not an object of type range"),
        (list(range(1, 20_000)), "has 19999 values; a test has at most 10000 points"),
        ([2] * 9_000, "duplicate values: 2, 2"),
    ),
)
def test_invalid_axis_values_are_refused(values, words):
    assert words in refused(tp=values)


def test_text_values_of_an_axis_must_be_short_and_printable():
    for value in ("x" * 101, "a\x1b[31m", "\ud800", "a\0", "\u202e"):
        assert "words of at most 100 printable characters" in refused(name=[value])


def test_confusable_axis_names_are_refused_as_unknown():
    for name in ("ｔｐ", "tр", "tp ", "TP", "", "t" * 10**6):
        assert "unknown axis" in refused(**{name: 1})


def test_a_sweep_of_too_many_points_is_refused():
    axes = {axis: list(range(1, 60)) for axis in ("tp", "cp", "dp", "pp")}
    declared = read_marker((train,), axes)

    with pytest.raises(DeclarationError, match=r"the axes make 12117361 points \(tp: 59 \* cp: 59"):
        cells(declared, Settings(), lambda point, arguments: None)


def test_points_are_counted_after_the_command_line_is_applied():
    words = parse_words([f"{axis}={','.join(map(str, range(1, 60)))}" for axis in ("tp", "cp")])
    declared = read_marker((train,), {"tp": 1, "cp": 1, "layers": [1, 2, 3]})

    with pytest.raises(DeclarationError, match=f"make 10443 points .* at most {MAX_POINTS}"):
        cells(declared, Settings(sweep=words), lambda point, arguments: None)


def test_a_long_list_of_invalid_points_is_cut():
    declared = read_marker((train,), {"tp": list(range(9, 109))})

    with pytest.raises(DeclarationError, match="no point of this sweep is valid") as caught:
        cells(declared, Settings(), lambda point, arguments: None)

    assert str(caught.value).endswith("\n  and 80 more")


def test_ids_of_points_with_many_axes_are_distinct_and_have_150_characters():
    points = [Point.of({f"axis{i}": "x" * 100 for i in range(50)}, last=i) for i in range(2)]

    assert len({point.id for point in points}) == 2
    assert all(len(point.id) == 150 for point in points)


@pytest.mark.parametrize(
    ("word", "words"),
    rows(
        ("tp=" + DIGITS, "axis 'tp' takes integers of at most 64 bits"),
        ("tp=-" + DIGITS, "axis 'tp' takes integers of at most 64 bits"),
        ("tp=" + "x" * 10**6, "--trainsafe-sweep tp=xxx"),
        ("tp=٣", "axis 'tp' takes an integer >= 1"),
        ("tp=１", "axis 'tp' takes an integer >= 1"),
        ("tp=1_0", "axis 'tp' takes an integer >= 1"),
        ("tp=0x10", "axis 'tp' takes an integer >= 1"),
        ("tp=nan", "axis 'tp' takes an integer >= 1"),
        ("tp=1e3", "axis 'tp' takes an integer >= 1"),
        ("tp=1,01", "axis 'tp' has duplicate values"),
        ("sp=true,1", "axis 'sp' has duplicate values"),
        ("ｔｐ=1", "takes words such as tp=1,2"),
        ("=1", "takes words such as tp=1,2"),
        ("\ud800=1", "takes words such as tp=1,2"),
        ("tp=1\x1b[31m", r"tp=1\x1b[31m: axis 'tp' takes an integer"),
        ("recompute=\ud800", "words of at most 100 printable characters"),
        ("layers=" + ",".join(["1"] * 20_000), "has 20000 values; a test has at most 10000"),
        ("layers=" + DIGITS, "words of at most 100 printable characters, not '999"),
        ("layers=\ud800", r"layers=\ud800: an axis takes numbers and words of at most 100"),
        ("l" * 10**6 + "=1", "takes words such as tp=1,2"),
        ("layers=" + "," * 9_000, "has an empty value"),
    ),
)
def test_an_invalid_sweep_word_is_refused_with_a_short_quote(word, words):
    table, message = attempt(lambda: parse_words([word]))

    assert table is None
    assert words in message


def test_twenty_thousand_sweep_words_are_parsed_and_a_repeated_axis_is_refused():
    words = [f"a{number}=1" for number in range(20_000)]
    assert len(parse_words(words)) == 20_000

    with pytest.raises(DeclarationError, match="names axis 'a7' twice"):
        parse_words([*words, "a7=2"])


def test_divides_refuses_unknown_names_and_values_that_are_no_numbers():
    with pytest.raises(DeclarationError, match="the axis 'recompute' is 'full' at this Point"):
        divides("layers", "recompute")(Point.of(recompute="full"), {"layers": 2})
    with pytest.raises(DeclarationError, match=r"'tpp' is neither .*; did you mean 'pp' or 'tp'\?"):
        divides("layers", "tpp")(Point.of(tp=2), {"layers": 2})
    with pytest.raises(ArgumentError, match="divides takes names"):
        divides("layers", 2)  # type: ignore[arg-type]
    assert divides("layers", "width")(Point.of(width=0), {"layers": 2, "width": 0}) == (
        "layers=2 is not divisible by width=0"
    )


#: Constants that often break parsers.
ADVERSARIAL = st.sampled_from(
    [
        *(10**4000, -(10**4000), 2**63, 2**64, -(2**63) - 1, float("nan"), float("inf"), -0.0),
        *("", DIGITS, "x" * 10**5, "\0", "\ud800", "\x1b[2J", "٣", "１", "ß", "true", "1", "full"),
        *(itself(), (), [], {}, {1: 2}, {1}, b"x", object(), int, train, range(9)),
        *(None, True, False, 0, 1, 2, -1, 10**6, list(range(1, 300)), [1, True], [1, 1.0], ["a_b"]),
        *(
            "os:system",
            "../x:y",
            ".a:f",
            "a:b",
            ":",
            "json:loads",
            f"{__name__}:train",
            Script("x"),
        ),
    ]
)
NESTED = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=9),
        st.binary(),
        ADVERSARIAL,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), inner, max_size=4),
    ),
    max_leaves=9,
)
KEYWORDS = st.one_of(
    st.sampled_from(
        [*AXES, *SETTING_WORDS, "layers", "name", "rate", "untyped", "ctx", "tpp", "steps"]
    ),
    st.text(max_size=9),
)
#: Values that keywords accept, so that some generated markers are valid.
LIKELY = st.one_of(
    st.sampled_from([1, 2, [1, 2], True, [False, True], "float32", {"pp": 2}, {"layers": 3}]),
    st.dictionaries(st.sampled_from(["rate", "name", "ctx", "pp"]), NESTED, max_size=2),
)
PROGRAMS = st.one_of(st.sampled_from([train, open_ended, positional, f"{__name__}:train"]), NESTED)


@given(
    programs=st.lists(PROGRAMS, min_size=1, max_size=2) | st.just([train]),
    keywords=st.dictionaries(KEYWORDS, st.one_of(NESTED, LIKELY), max_size=4),
)
@settings(deadline=None)
@example(programs=["os:system"], keywords={})
@example(programs=[train], keywords={"args": {"rate": itself()}})
@example(programs=[train], keywords={axis: list(range(1, 60)) for axis in ("tp", "cp", "dp", "pp")})
def test_any_marker_gives_a_sweep_or_a_printable_error(programs, keywords):
    made, _ = attempt(
        lambda: cells(read_marker(programs, keywords), Settings(), lambda point, arguments: None)
    )
    if made is not None:
        assert 1 <= len(made) <= MAX_POINTS
        assert all(cell.id.isascii() and len(cell.id) <= 160 for cell in made)
        assert len({cell.id for cell in made}) == len(made)


TOKENS = st.sampled_from(
    [
        *(*AXES, "=", "=", ",", "-", "1", "2", "true", "float32", "full", "layers", DIGITS, "\0"),
        *("\ud800", "٣", " ", "x" * 300, ",,", "1," * 3000, "--trainsafe-sweep", "--"),
    ]
)
WORDS = st.one_of(st.text(max_size=20), st.lists(TOKENS, max_size=6).map("".join))


@given(st.lists(WORDS, max_size=5))
@settings(deadline=None)
@example(["tp=" + DIGITS])
@example(["tp=1", "tp=2"])
def test_any_sweep_words_are_parsed_or_give_a_printable_error(words):
    arguments = list(words)
    taken = gather(arguments, lambda word: False)
    assert set(taken) <= set(words)
    table, _ = attempt(lambda: parse_words(words))
    if table is not None:
        assert [f"{axis}={','.join(values)}" for axis, values in table] == words
        declared = read_marker((train,), {"tp": 1, "cp": 1, "layers": 1})
        narrowed = Settings(sweep=table)
        made, _ = attempt(lambda: cells(declared, narrowed, lambda point, arguments: None))
        assert made is None or all(cell.id.isascii() for cell in made)


@given(NESTED)
@settings(deadline=None)
def test_any_value_is_shown_in_one_short_printable_line(value):
    text = shown(value)

    assert len(text) < 400
    assert text.isprintable()
