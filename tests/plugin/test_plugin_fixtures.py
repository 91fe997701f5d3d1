"""The fixtures pass a test's Case to the one Session of the process."""

#: Replaces `pytest_trainsafe.runs.session`, which needs torch, and records its calls.
RECORDER = """
    import sys, types

    class Traces:
        def __init__(self, session, role, case):
            self.session, self.role, self.case = session, role, case
            self.runs = types.SimpleNamespace(
                waited=False, publish=None, held_up=lambda: 0.0
            )

    class Session:
        executor = types.SimpleNamespace(board=None)
        leases = types.SimpleNamespace(forget_dead=lambda: print("forgot the dead"))
        groups = types.SimpleNamespace(leases=leases)

        def __init__(self, settings, basetemp, cache_folder, shared, controller):
            assert (shared, controller) == (None, None)  # not a worker of pytest-xdist
            assert settings.seed == 5
            assert basetemp.is_dir()
            assert cache_folder.is_dir()
            self.folders = types.SimpleNamespace(root=basetemp / "trainsafe")
            self.discarded = []

        def reference(self, case):
            return Traces(self, "reference", case)

        def candidate(self, case):
            return Traces(self, "candidate", case)

        def discard(self, traces):
            self.discarded.append(traces.case.point.id)

        def stop_runs(self):
            print("stopped after discarding", self.discarded)

        def close(self):
            print("closed after discarding", self.discarded)

    sys.modules["pytest_trainsafe.runs.session"] = types.ModuleType("session")
    sys.modules["pytest_trainsafe.runs.session"].Session = Session
"""

TESTS = """
    import pytest

    @pytest.mark.trainsafe("program:train", tp=[1, 2])
    def test_traces(request, trainsafe, reference_trace, candidate_trace, torchrun_group):
        asked = [reference_trace, candidate_trace]
        assert [entry.role for entry in asked] == ["reference", "candidate"]
        assert all(entry.case is trainsafe for entry in asked)
        assert torchrun_group._case is trainsafe
        assert torchrun_group._session is candidate_trace.session
        candidate_trace.runs.publish({"point": trainsafe.point.id, "verdict": "pass"})

    def test_a_group_without_a_marker_has_no_case(torchrun_group):
        assert torchrun_group._case is None
"""


def test_traces_and_groups_come_from_one_session_closed_at_the_end(project):
    project.makeconftest(RECORDER)
    project.makepyfile(TESTS)

    result = project.runpytest_inprocess("--trainsafe-seed=5", "-s")

    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["2 points judged: 2 pass*"])
    endings = [line for line in result.outlines if " after discarding " in line]
    # The dots of pytest's progress are in front of the first.
    assert [each.lstrip(".") for each in endings] == [
        f"{what} after discarding ['tp1', 'tp2']" for what in ("stopped", "closed")
    ]


def test_kept_traces_are_not_discarded(project):
    project.makeconftest(RECORDER)
    project.makepyfile(TESTS)

    result = project.runpytest_inprocess("--trainsafe-seed=5", "--trainsafe-keep-traces=k", "-s")

    result.stdout.fnmatch_lines(["closed after discarding [[][]]"])


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


def test_a_misspelt_marker_is_named(project):
    project.makeini("[pytest]\nmarkers = trainsave: misspelt\n")
    project.makepyfile(
        test_bare="""
        import pytest

        @pytest.mark.trainsave(print, tp=2)
        def test_it(trainsafe):
            pass
        """
    )

    result = project.runpytest_inprocess("-W", "ignore")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*trainsafe; correct its marker 'trainsave' to 'trainsafe'*"])


def test_the_summary_says_how_long_a_test_waited_for_ranks_of_other_test_runs(project):
    project.makepyfile(
        """
        import time
        import pytest

        @pytest.mark.trainsafe("program:train", tp=[1])
        def test_held_up(candidate_trace):
            candidate_trace.runs.waited = True  # as if it had compared a Run
            board = candidate_trace.runs.scheduler.executor.board
            with board.running("tp=1", "float64 run", 1) as enter:
                enter("waits for free ranks", "process 42 in /a")
                time.sleep(1.2)
            candidate_trace.runs.publish({"point": "tp1", "verdict": "pass"})
        """
    )

    result = project.runpytest_inprocess()

    result.assert_outcomes(passed=1)
    (line,) = [line for line in result.outlines if "1 point judged" in line]
    waited = float(line.partition("waited ")[2].partition(" s for ranks that other test")[0])
    assert 1.2 <= waited < 60.0
