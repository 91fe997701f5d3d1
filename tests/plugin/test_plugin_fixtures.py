"""The fixtures hand a test's Case to the one Session of the process."""

#: Stands where `pytest_trainsafe.session` does, which needs torch: says what it was asked.
RECORDER = """
    import sys, types

    class Session:
        def __init__(self, settings, basetemp):
            assert settings.seed == 5
            assert basetemp.is_dir()

        def reference(self, case):
            return (self, "reference", case)

        def candidate(self, case):
            return (self, "candidate", case)

        def group(self, case):
            return (self, "group", case)

    sys.modules["pytest_trainsafe.session"] = types.ModuleType("session")
    sys.modules["pytest_trainsafe.session"].Session = Session
"""


def test_traces_and_groups_come_from_one_session_and_the_tests_case(project):
    project.makeconftest(RECORDER)
    project.makepyfile(
        """
        import pytest

        seen = []

        @pytest.mark.trainsafe("program:train", tp=[1, 2])
        def test_traces(trainsafe, reference_trace, candidate_trace, torchrun_group):
            asked = [reference_trace, candidate_trace, torchrun_group]
            assert [word for _, word, _ in asked] == ["reference", "candidate", "group"]
            assert all(case is trainsafe for _, _, case in asked)
            seen.extend(session for session, _, _ in asked)

        def test_a_group_without_a_marker_has_no_case(torchrun_group):
            assert torchrun_group[1:] == ("group", None)
            seen.append(torchrun_group[0])

        def test_the_session_is_one():
            assert len(seen) == 7
            assert len(set(map(id, seen))) == 1
        """
    )

    result = project.runpytest_inprocess("--trainsafe-seed=5")

    result.assert_outcomes(passed=4)


def test_a_fixture_without_the_marker_says_what_to_add(project):
    project.makepyfile(
        test_bare="""
        def test_it(trainsafe):
            pass
        """
    )

    result = project.runpytest_inprocess()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*test_bare.py::test_it uses a fixture of trainsafe but has no marker; add @pytest.mark*"]
    )
