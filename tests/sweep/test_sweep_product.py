"""From a marker to Cases: order, ids, arguments, overriding, settings, rungs."""

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.errors import SweepError
from pytest_trainsafe.sweep import divides, requires
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells


@requires(divides("heads", "tp"))
def train(ctx, heads=4, recompute=False, microbatches=2, mode=""):
    """A program whose signature and rule are all that matters here."""


def make(settings=None, **keywords):
    return cells(read_marker((train,), keywords), settings or Settings(), lambda p, a: None)


def test_the_last_axis_varies_fastest():
    made = make(tp=[1, 2], sp=[False, True])

    assert [cell.id for cell in made] == ["tp1-nosp", "tp1-sp", "tp2-nosp", "tp2-sp"]
    assert [cell.invalid for cell in made] == [None, "sp needs tp > 1", None, None]


def test_no_axes_make_one_point_on_a_single_device():
    assert [cell.id for cell in make()] == ["single"]


def test_the_reference_gets_problem_arguments_but_no_parallelisation_arguments():
    (cell,) = make(
        tp=2, heads=8, recompute=True, microbatches=4, args={"mode": "a"}, candidate_args={}
    )

    assert cell.case.arguments == {"heads": 8, "microbatches": 4, "mode": "a"}
    assert cell.case.candidate_arguments == cell.case.arguments | {"recompute": True}


def test_candidate_arguments_reach_only_the_candidate():
    (cell,) = make(args={"mode": "a"}, candidate_args={"mode": "b"})

    assert cell.case.arguments == {"mode": "a"}
    assert cell.case.candidate_arguments == {"mode": "b"}


def test_the_reference_is_a_pipeline_if_the_marker_says_so():
    (alone,) = make(tp=2, dp=2, mode="a", dtype="bfloat16")
    (cell,) = make(tp=2, dp=2, dtype="bfloat16", reference={"pp": 4, "mode": "b"})

    assert dict(alone.case.reference_point) == {"mode": "a"}
    assert dict(cell.case.reference_point) == {"pp": 4}
    assert cell.case.arguments == {"mode": "b"}
    assert cell.case.candidate_arguments == {}


def test_a_point_is_invalid_if_its_reference_is_too_large():
    settings = Settings(max_world_size=4)
    (cell,) = make(settings, tp=2, reference={"pp": 8})

    assert cell.invalid == (
        "its reference at pp=8 is invalid: world size 8 (pp=8) is above "
        "--trainsafe-max-world-size=4"
    )


def test_a_programs_rule_reads_swept_arguments():
    made = make(tp=[3], heads=[4, 6])

    assert [cell.invalid for cell in made] == ["heads=4 is not divisible by tp=3", None]


def test_a_sweep_of_invalid_points_only_is_an_error_that_lists_them():
    with pytest.raises(SweepError, match=r"no point of this sweep is valid:\n  tp=3: heads=4"):
        make(tp=[3])


def test_the_command_line_replaces_axis_values_and_may_leave_no_valid_point():
    settings = Settings(sweep=(("tp", ("3",)), ("pp", ("2",)), ("heads", ("6", "4"))))

    made = make(settings, tp=[1, 2], heads=[4])

    assert [cell.id for cell in made] == ["tp3-heads6", "tp3-heads4"]
    assert make(Settings(sweep=(("tp", ("3",)),)), tp=[1])[0].invalid


def test_a_command_line_value_of_a_parameter_must_have_the_parameters_type():
    with pytest.raises(SweepError, match="axis 'heads' takes an integer, not 'many'"):
        make(Settings(sweep=(("heads", ("many",)),)), heads=[4])


def test_ids_are_distinct_for_values_that_differ_only_in_punctuation():
    assert [cell.id for cell in make(mode=["a_b", "ab"])] == ["modeab-0", "modeab-1"]


def test_settings_of_a_marker_override_options_and_its_accepted_checks_are_added():
    settings = Settings(seed=1, timeout=60.0, accept=("moved",))

    (cell,) = make(settings, seed=7, accept=["dropout", "moved"])

    assert cell.case.settings == Settings(seed=7, timeout=60.0, accept=("moved", "dropout"))


@pytest.mark.parametrize(
    ("dtype", "asked", "rungs"),
    [
        ("float64", (), ("float64",)),
        ("float32", (), ("float64", "float32")),
        ("bfloat16", (), ("float64", "float32", "bfloat16")),
        ("bfloat16", ("float32",), ("float32",)),
    ],
)
def test_the_rungs_go_from_float64_to_the_dtype_of_the_point_unless_they_are_set(
    dtype, asked, rungs
):
    (cell,) = make(Settings(dtypes=asked), dtype=dtype)

    assert cell.case.rungs == rungs
