"""`--trainsafe-plan` writes what would run; `--trainsafe-shard` runs a part of it."""

import json

import pytest

from pytest_trainsafe.sweep.plan.seconds import update_seconds


@pytest.fixture
def planned(swept):
    """The project with swept tests and a test without the marker."""
    swept.makepyfile(test_other="def test_other(): pass")
    return swept


def plan_of(project, *arguments):
    result = project.runpytest_inprocess("--trainsafe-plan", "json", *arguments)
    return result, json.loads(result.stdout.str())


def passed(project, *arguments):
    """The names of the tests that a run passes."""
    result = project.runpytest_inprocess("-rA", *arguments)
    assert result.ret == 0
    return [line.partition("::")[2] for line in result.outlines if line.startswith("PASSED")]


def test_a_plan_lists_points_with_their_ranks_and_unknown_values_and_runs_no_test(planned):
    result, plan = plan_of(planned, "--trainsafe-sweep", "cp=1,3", "--trainsafe-device", "cuda")

    assert result.ret == 0
    assert [point["id"] for point in plan["points"]] == [
        *(f"test_swept.py::test_mesh[tp{tp}-cp{cp}]" for tp in (1, 2) for cp in (1, 3)),
        *(f"test_swept.py::test_layers[layers{layers}]" for layers in (2, 8)),
    ]
    assert plan["points"][3] == {
        "id": "test_swept.py::test_mesh[tp2-cp3]",
        "point": {"tp": 2, "cp": 3},
        "world_size": 6,
        "reference_world_size": 1,
        "device": "cuda",
        "gpus": 6,
        "seconds": None,
    }
    assert (plan["max_world_size"], plan["other_tests"]) == (6, 1)
    assert plan["estimated_seconds"] is None
    assert plan["unknown"] == [
        "the seconds of 6 of 6 points: pytest's cache has no earlier run of them"
    ]
    result.stderr.fnmatch_lines(["trainsafe: device cuda, plan json", "*no tests ran*"])


def test_a_plan_has_the_seconds_of_earlier_runs_and_the_skipped_points(planned):
    folder = planned.path / ".pytest_cache" / "d" / "trainsafe"
    folder.mkdir(parents=True)
    update_seconds(folder, {"test_swept.py::test_layers[layers2]": 3.0})

    _, plan = plan_of(planned, "--trainsafe-sweep", "tp=3", "cp=1", "layers=2")

    assert [point["seconds"] for point in plan["points"]] == [3.0]
    assert plan["estimated_seconds"] == 3.0
    assert plan["points"][0]["gpus"] is None
    [unknown] = plan["unknown"]
    assert unknown.startswith("the device of 1 of 1 points: it is auto, which uses a GPU for")
    assert plan["skipped"] == [
        {
            "id": "test_swept.py::test_mesh[tp3-cp1]",
            "reason": "heads=4 is not divisible by tp=3",
        }
    ]


def test_no_plan_is_written_if_a_module_cannot_be_imported(planned):
    planned.makepyfile(test_broken="import nothing_of_this_name")

    result = planned.runpytest_inprocess("--trainsafe-plan", "json")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert result.stdout.str() == ""
    result.stderr.fnmatch_lines(["*nothing_of_this_name*", "*no plan is written*"])


def test_the_shards_contain_every_test_once_and_the_first_contains_unmarked_tests(planned):
    whole = passed(planned)
    parts = [passed(planned, "--trainsafe-shard", f"{number}/3") for number in (1, 2, 3)]

    assert sorted(test for part in parts for test in part) == sorted(whole)
    assert "test_other" in parts[0]
    assert all(part for part in parts)


def test_a_plan_balances_shards_by_seconds(planned):
    folder = planned.path / ".pytest_cache" / "d" / "trainsafe"
    folder.mkdir(parents=True)
    slow = "test_swept.py::test_mesh[tp1-cp1]"
    update_seconds(folder, {slow: 100.0, "test_swept.py::test_mesh[tp1-cp2]": 1.0})
    result, _ = plan_of(planned)
    planned.path.joinpath("plan.json").write_text(result.stdout.str())
    arguments = ("--trainsafe-from-plan", "plan.json", "--trainsafe-shard")

    # The unmeasured tests count as the mean, 50.5 seconds each.
    assert passed(planned, *arguments, "1/4") == ["test_other", "test_mesh[tp1-cp1]"]
    others = [passed(planned, *arguments, f"{number}/4") for number in (2, 3, 4)]
    assert sorted(len(part) for part in others) == [1, 2, 2]


def test_a_shard_has_the_same_tests_under_xdist_and_a_plan_is_written_under_xdist(planned):
    pytest.importorskip("xdist")
    _, plan = plan_of(planned, "-n", "2")
    assert len(plan["points"]) == 6

    alone = passed(planned, "--trainsafe-shard", "2/3")
    result = planned.runpytest_subprocess("-n", "2", "-rA", "--trainsafe-shard", "2/3")
    assert [name for name in alone if f"::{name}" not in result.stdout.str()] == []
    result.assert_outcomes(passed=len(alone))


def test_a_shard_without_tests_succeeds(planned):
    result = planned.runpytest_inprocess("--trainsafe-shard", "9/9")

    result.assert_outcomes(deselected=7)
    assert result.ret == 0


def test_a_shard_out_of_range_is_a_usage_error(planned):
    result = planned.runpytest_inprocess("--trainsafe-shard", "5/4")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--trainsafe-shard is '5/4', but 4 shards are numbered from 1 *"])


def test_from_plan_without_a_shard_is_a_usage_error(planned):
    result = planned.runpytest_inprocess("--trainsafe-from-plan", "plan.json")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--trainsafe-from-plan says how to divide the tests into*add*1/4*"]
    )


def test_a_plan_with_a_test_that_no_longer_exists_is_a_collection_error(planned):
    result, _ = plan_of(planned)
    text = result.stdout.str().replace("[tp1-cp1]", "[gone]")
    planned.path.joinpath("plan.json").write_text(text)

    result = planned.runpytest_inprocess(
        "--trainsafe-from-plan", "plan.json", "--trainsafe-shard", "1/2"
    )

    assert result.ret != 0
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "the plan * does not fit this run: 1 of its points are not collected. A test is *",
            "  test_swept.py::test_mesh[[]gone]",
        ]
    )
