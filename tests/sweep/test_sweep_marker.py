"""Reading a marker: what it may contain, and the errors for mistakes."""

from functools import partial

import pytest

from pytest_trainsafe.errors import DeclarationError
from pytest_trainsafe.launch import Script
from pytest_trainsafe.sweep.marker import read_marker


def train(ctx, layers=2, name: str | None = None, rate=0.1, untyped=None):
    """A program whose signature is all that matters here."""


def demanding(ctx, data, recompute):
    """A program with parameters that have no default."""


def stepping(ctx, steps=1):
    """A program with a parameter for its number of steps."""


def read(*positional, **keywords):
    return read_marker(positional or (train,), keywords)


def test_keywords_that_are_no_settings_are_axes_in_their_order():
    declared = read(train, cp=[1, 2], tp=4, layers=[2, 8], args={"rate": 0.5}, timeout=9)

    assert [(axis.name, values) for axis, values in declared.axes] == [
        ("cp", (1, 2)),
        ("tp", (4,)),
        ("layers", (2, 8)),
    ]
    assert declared.args == {"rate": 0.5}
    assert declared.settings == {"timeout": 9.0}


def test_a_program_is_identified_by_the_path_from_which_the_ranks_import_it():
    for declared in (read(train, tp=1), read(f"{__name__}:train", tp=1)):
        assert declared.program.path == f"{__name__}:train"
        assert declared.program.file == __file__
        assert list(declared.program.parameters) == ["layers", "name", "rate", "untyped"]


def test_the_type_of_a_parameter_is_that_of_its_default_annotation_or_values():
    kinds = {a.name: a.types for a, _ in read(layers=3, name="a", untyped=[True]).axes}

    assert kinds == {"layers": (int,), "name": (str,), "untyped": (bool,)}


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"tpp": [1]}, "unknown axis 'tpp'; did you mean 'pp' or 'tp'?"),
        ({"layer": [1]}, "parameters of .*train: layers, name, rate, untyped"),
        ({"steps": 3}, "does not take it: give it a parameter steps=1, and let it enter `with ctx"),
        ({"tp": []}, "axis 'tp' has no values"),
        ({"expect": ["drop"]}, r"expect takes a list of what expect_rng returns, .*not 'drop'"),
        ({"tp": [1, 1]}, "axis 'tp' has duplicate values"),
        ({"tp": ["2"]}, "axis 'tp' takes an integer >= 1, not '2'"),
        ({"tp": {1}}, "axis 'tp' takes a value or a list of values, not {1}"),
        ({"arg": {"layers": 3}}, "not {'layers': 3}; did you mean 'args'?"),
        ({"layers": [True]}, "axis 'layers' takes an integer, not True"),
        ({"rate": ["x"]}, "axis 'rate' takes a number, not 'x'"),
        ({"rate": [float("nan")]}, "axis 'rate' takes a number, not nan"),
        ({"rate": [True]}, "axis 'rate' takes a number, not True"),
        ({"reference": 2}, r"reference takes a dict such as \{'pp': 2\}, not 2"),
        ({"reference": {"tp": 2}}, "reference has the axis 'tp', but the reference run uses a"),
        ({"reference": {"pp": 0}}, "axis 'pp' takes an integer >= 1, not 0"),
        ({"reference": {"layres": 1}}, "reference has 'layres'.* did you mean 'layers'?"),
        ({"reference": {"layers": 1}, "layers": 2}, "reference has 'layers', which is already an"),
        ({"args": [1]}, "args takes a dict of the program's arguments, not"),
        ({"args": {"layres": 1}}, "args has 'layres'.* does not take; did you mean 'layers'?"),
        ({"args": {"layers": object()}}, "args: layers=.* cannot be sent to the ranks"),
        ({"args": {"layers": 1}, "layers": [2]}, "args has 'layers', which is already an axis"),
        ({"candidate_args": {"bug": 1}}, "candidate_args has 'bug'"),
        ({"seed": -1}, "seed takes an integer from 0 to"),
        ({"seed": True}, "seed takes an integer from 0 to"),
        ({"timeout": 0}, "timeout takes a positive number of seconds, not 0"),
        ({"timeout": "5"}, "timeout takes a positive number of seconds, not '5'"),
        ({"accept": "inputs"}, "accept takes a list of names of checks, not 'inputs'"),
    ],
)
def test_an_invalid_keyword_is_an_error_that_says_what_is_allowed(keywords, message):
    with pytest.raises(DeclarationError, match=message.replace("?", r"\?")):
        read(**keywords)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("nowhere_at_all:train", "'nowhere_at_all:train' cannot be imported: No module named"),
        ("json", "program 'json' is not an import path; write 'package.module:function'"),
        ("json:lods", "module 'json' has no 'lods'"),
        ("json:__name__", "program 'json:__name__' is not a function but str"),
        (lambda ctx: None, "is defined inside a function|define it at the top level"),
        (partial(train, layers=1), "a program is a function, an import path"),
    ],
)
def test_a_program_the_ranks_could_not_import_is_refused(program, message):
    with pytest.raises(DeclarationError, match=message):
        read_marker((program,), {"tp": 1})


def no_context():
    """A program without a context parameter."""


def test_a_program_without_a_context_parameter_is_refused():
    with pytest.raises(DeclarationError, match="takes no context"):
        read(no_context)


def test_the_marker_takes_exactly_one_program():
    with pytest.raises(DeclarationError, match="has no program"):
        read_marker((), {"tp": [1]})
    with pytest.raises(DeclarationError, match="has 2 positional arguments"):
        read_marker((train, 2), {})


def test_parameters_without_a_default_must_be_given_to_both_runs():
    with pytest.raises(DeclarationError, match=r"needs a value for 'data'; give args={'data'"):
        read(demanding, args={"recompute": True})
    with pytest.raises(
        DeclarationError, match=r"'recompute' of .* needs a default, because the reference"
    ):
        read(demanding, args={"data": 1}, recompute=[True])


def test_the_keyword_steps_is_refused_for_a_script():
    with pytest.raises(
        DeclarationError, match=r"give a script its number of steps in Script\(path"
    ):
        read(Script(__file__), steps=3)


def test_a_missing_script_is_an_error_that_names_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DeclarationError, match=f"there is no script 'train.py' in {tmp_path}; give"
    ):
        read(Script("train.py"), tp=2)
    with pytest.raises(DeclarationError, match=f"there is no script '{tmp_path}/other.py'; give"):
        read(Script(f"{tmp_path}/other.py"), tp=2)


def test_the_keyword_steps_must_be_at_least_1():
    with pytest.raises(DeclarationError, match="axis 'steps' takes an integer >= 1, not 0"):
        read(stepping, steps=0)
