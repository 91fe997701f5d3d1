"""An invalid marker is a collection error that names its test."""

import pytest


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("'program:train', tpp=[1]", "unknown axis 'tpp'; did you mean 'pp' or 'tp'?"),
        ("'program:train', pt=2", "unknown axis 'pt'; did you mean 'tp'?"),
        ("'program:train', tp=[]", "axis 'tp' has no values; give an integer >= 1"),
        ("'program:train', tp=['2']", "axis 'tp' takes an integer >= 1, not '2'"),
        ("'program:train', tp=[2, 2]", "axis 'tp' has duplicate values: 2, 2"),
        ("'program:train', tp=1, args={'head': 1}", "args has 'head', which program *"),
        ("'program:train', tp=[3]", "no point of this sweep is valid:"),
        (
            "'program:tarin', tp=1",
            "program 'program:tarin': module 'program' has no 'tarin'; did you mean 'train'?",
        ),
        ("'porgram:train', tp=1", "program 'porgram:train' cannot be imported: *"),
        ("tp=[1]", "the marker takes one program, then keywords, but has no program: *"),
    ],
)
def test_the_error_of_an_invalid_marker_names_the_test_and_what_is_allowed(
    project, marker, message
):
    project.makepyfile(
        test_bad=f"""
        import pytest

        @pytest.mark.trainsafe({marker})
        def test_it():
            pass
        """
    )

    result = project.runpytest_inprocess()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"test_bad.py::test_it: {message.replace('[', '[[]')}"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_two_markers_on_one_test_are_refused(project):
    project.makepyfile(
        test_bad="""
        import pytest

        @pytest.mark.trainsafe("program:train", tp=1)
        @pytest.mark.trainsafe("program:train", tp=2)
        def test_it():
            pass
        """
    )

    result = project.runpytest_inprocess()

    result.stdout.fnmatch_lines(["test_bad.py::test_it: a test takes one trainsafe marker*"])


def test_the_error_of_a_marker_with_only_a_program_says_to_name_an_axis(project):
    """pytest applies a marker that is called with only one function to that function."""
    project.makepyfile(
        test_bare="""
        import pytest

        def train(ctx):
            ctx.initialize(None)

        @pytest.mark.trainsafe(train)
        def test_it(candidate_trace):
            pass
        """
    )

    result = project.runpytest_inprocess()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*AttributeError*", '*Name an axis, such as tp=1, *trainsafe("test_bare:train")*']
    )


def test_other_errors_of_a_module_do_not_say_to_name_an_axis(project):
    project.makepyfile(
        test_other="""
        import pytest

        def decorate(test):
            raise ValueError(test.__name__)

        @decorate
        @pytest.mark.trainsafe("program:train", tp=1)
        def test_it(candidate_trace):
            pass
        """
    )

    result = project.runpytest_inprocess()

    result.assert_outcomes(errors=1)
    result.stdout.no_fnmatch_line("*Name an axis*")
