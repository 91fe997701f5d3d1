"""For a wrong reduction, optimizer step or batch, the report names the line that makes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.fixtures import deepspeed
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.explain.common_factor import with_factor
from pytest_trainsafe.judges.compare.fault.clause import words
from pytest_trainsafe.judges.compare.localize.blame import Phase
from pytest_trainsafe.judges.compare.localize.code.lines import NOWHERE
from pytest_trainsafe.judges.compare.localize.code.owners import summed_for_others
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.judges.compare.localize.initial import whole_steps
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.facts import CollectiveEvent, Reduction, SetUp, Site, What
from tests.support.compare.clipped_traces import rung
from tests.support.compare.traces import Record, draw, only
from tests.support.localize.blamed_traces import PROGRAM, noting
from tests.support.localize.said import said

REDUCED = Reduction("all_reduce(SUM)", ("dp",), "/me/talk.py:3", "/me/grads.py:10", 16)
LARGEST = Reduction("all_reduce(MAX)", ("dp",), "/me/talk.py:3", "/me/grads.py:12", 16)
OTHERS = Reduction("all_reduce(SUM)", ("dp",), "/me/talk.py:3", "/me/grads.py:14", 128)
BUCKET = Reduction("all_reduce(SUM)", ("dp",), "/me/talk.py:3", "/me/buckets.py:8", 500)
NORM = Reduction("all_reduce(SUM)", ("tp",), "/me/norm.py:5", "", 1, "norm")
STEP = Site("step", "/me/fit.py:40")
ADAM = Site("optimizer", "/me/fit.py:20", name="AdamW")
DDP = Site("wrapper", "/me/fit.py:25", name="DistributedDataParallel")
CLIP = Site("write", "/me/fit.py:38", name="_foreach_mul_")
DIVIDES = Site("write", "/me/fit.py:36", name="div_", factor=0.5)
DOUBLES = Site("write", "/me/fit.py:37", name="mul_", factor=2.0)
ADDS = Site("write", "/me/fit.py:35", name="add_")
MODEL = Site("model", "/env/site-packages/framework/loop.py:5", "/me/fit.py:30")


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory):
    """A bias of 16 elements whose gradient is not reduced."""
    double = only("main_grad", "fc1.bias", lambda r, at, part: part * 2)
    return rung(tmp_path_factory.mktemp("places"), Point.of(dp=2), double, limit=0)


def place(
    wrong,
    *lines: Reduction | SetUp | Site,
    phase: Phase = "reduction",
    of: str = "fc1.bias",
    both: tuple[Site, ...] = (),
):
    """The line named for a fault in `phase`, if the candidate recorded `lines`.

    The candidate and the reference recorded the lines `both`.
    """
    noted = noting(wrong, *lines, *both)
    comparison = with_factor(noted, compare(noted))
    reference = noting(dataclasses.replace(wrong, candidate=wrong.reference), *both).candidate
    return said(Places(noted.candidate, PROGRAM, reference).of_phase(phase, comparison, [of]))


def test_a_reduction_of_the_gradients_size_is_named_with_its_caller(wrong) -> None:
    source, what = place(wrong, OTHERS, REDUCED)
    assert source == "/me/grads.py:10"
    assert what == "all_reduce(SUM) over dp at /me/talk.py:3"


def test_a_reduction_called_by_an_installed_package_is_named_at_its_own_line(wrong) -> None:
    inside = Reduction(
        "all_reduce(SUM)", ("dp",), "/env/site-packages/mega/norms.py:3",
        "/env/site-packages/mega/loop.py:9", 16,
    )  # fmt: skip
    source, what = place(wrong, inside)
    assert source == "/env/site-packages/mega/norms.py:3"
    assert what == "all_reduce(SUM) over dp, called at /env/site-packages/mega/loop.py:9"


def test_an_asynchronous_reduction_points_to_the_assertion_that_finds_missing_waits(wrong) -> None:
    for caller in (REDUCED.caller, ""):
        waits = msgspec.structs.replace(REDUCED, caller=caller)
        unwaited = msgspec.structs.replace(waits, asynchronous=True)
        _, what = place(wrong, unwaited)
        _, plain = place(wrong, waits)
        assert what == (
            f"{plain}; the call is asynchronous (async_op=True), so its result must not be used "
            "before a wait: the assertion assert_schedule_independent finds a missing wait"
        )


def given(*names: str) -> list[CollectiveEvent]:
    """The calls at the line of REDUCED, by the gradient that each was given."""
    calls = ("all_reduce", (0, 1), REDUCED.site)
    return [CollectiveEvent(*calls, step=0, shape=(16,), name=name) for name in names]


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (["norm.weight.grad", "fc2.weight.grad"], []),
        (["norm.weight.grad", "fc1.bias.grad"], [REDUCED]),
        (["norm.weight.grad", ""], [REDUCED]),  # a copy or a bucket may hold any gradient
        ([], [REDUCED]),
    ],
)
def test_a_collective_that_was_given_other_gradients_alone_is_not_said_to_reduce_this_one(
    wrong, names: list[str], listed: list[Reduction]
) -> None:
    noted = noting(wrong, REDUCED, *given(*names))
    places = Places(noted.candidate, PROGRAM, wrong.reference)

    assert places.listed("reduction", ["fc1.bias"]) == listed
    # Where other gradients are reduced is where this one should be.
    assert places.of_phase("reduction", compare(noted), ["fc1.bias"]).source == REDUCED.caller


@pytest.fixture(scope="module")
def unreduced(tmp_path_factory: pytest.TempPathFactory):
    """A bias of 16 elements of whose gradient each rank of dp holds a term."""
    halves = only("main_grad", "fc1.bias", lambda r, at, part: part * (0.75, 0.25)[at["dp"]])
    return rung(tmp_path_factory.mktemp("unreduced"), Point.of(dp=2), halves, limit=0)


@pytest.mark.parametrize(
    ("made", "names", "text"),
    [
        (REDUCED, ["norm.weight.grad", "fc2.bias.grad"], "the gradients of 2 other parameters"),
        (OTHERS, [""], "gradients such as that of fc1.weight (128 elements)"),
        (REDUCED, [""], ""),  # a copy that may be of this gradient
        (BUCKET, [""], ""),
    ],
)
def test_a_sum_that_runs_for_other_parameters_is_said_to_miss_this_one(
    unreduced, made: Reduction, names: list[str], text: str
) -> None:
    noted = noting(unreduced, made, *given(*names))
    clause = words(summed_for_others(noted.candidate, compare(noted), [made], ["fc1.bias"]))

    assert text in clause
    assert bool(clause) == bool(text)
    assert ("not for that of fc1.bias" in clause) == bool(text)
    assert summed_for_others(noted.candidate, compare(noted), [NORM], ["fc1.bias"]) == []


def test_a_line_that_reduces_some_of_the_gradients_that_are_wrong_together_is_not_named(
    wrong,
) -> None:
    noted = noting(wrong, STEP, REDUCED)
    comparison = compare(noted)
    found = Places(noted.candidate, PROGRAM, wrong.reference)

    assert found.of_phase("reduction", comparison, ["fc1.bias"]).source == REDUCED.caller
    both = ["fc1.bias", "fc1.weight"]  # of 16 and of 128 elements
    assert found.of_phase("reduction", comparison, both).source == STEP.at


def test_a_max_reduction_of_gradients_is_named_before_a_sum(wrong) -> None:
    assert place(wrong, REDUCED, LARGEST)[0] == "/me/grads.py:12"


def test_a_reduction_of_another_size_is_named_if_none_has_the_gradients_size(wrong) -> None:
    assert place(wrong, OTHERS)[0] == "/me/grads.py:14"


def test_a_bucket_that_may_contain_the_gradient_is_named_before_reductions_of_other_parameters(
    wrong,
) -> None:
    bucket = Reduction("reduce_scatter_tensor(SUM)", ("dp",), "/me/buckets.py:8", "", 500)
    assert place(wrong, OTHERS, bucket)[0] == "/me/buckets.py:8"


def test_the_line_that_constructs_a_gradient_reducing_wrapper_is_named(wrong) -> None:
    source, what = place(wrong, STEP, DDP)
    assert source == "/me/fit.py:25"
    does = "reduces the gradients of the parameters that its module had then"
    assert what == f"DistributedDataParallel is applied here and {does}"


def test_a_module_that_is_set_up_below_the_wrapper_is_named_with_its_line(wrong) -> None:
    _, what = place(wrong, STEP, DDP, SetUp("fc1", "/me/fit.py:27"))
    assert what.endswith("; fc1 is set up after that, at /me/fit.py:27")
    for earlier in (SetUp("fc1", "/me/fit.py:21"), SetUp("fc1", "/me/build.py:27")):
        assert "after that" not in place(wrong, STEP, DDP, earlier)[1]


def test_without_a_reduction_the_line_that_changes_gradients_or_steps_is_named(wrong) -> None:
    assert place(wrong, STEP, CLIP) == ("/me/fit.py:38", "changes gradients by _foreach_mul_")
    assert place(wrong, STEP) == ("/me/fit.py:40", "steps the optimizer")


@pytest.mark.parametrize("reduces", [DDP, REDUCED])
def test_a_line_that_multiplies_by_the_factor_of_the_error_is_named_before_the_reduction(
    wrong, reduces: Reduction | Site
) -> None:
    """The gradient is twice the reference's."""
    assert place(wrong, reduces, DIVIDES, CLIP, DOUBLES) == (
        "/me/fit.py:37",
        "changes gradients by mul_",
    )


@pytest.mark.parametrize("reduces", [DDP, REDUCED])
def test_a_line_that_multiplies_by_another_number_or_as_the_reference_is_not_at_fault(
    wrong, reduces: Reduction | Site
) -> None:
    line = reduces.at if isinstance(reduces, Site) else reduces.caller
    assert place(wrong, reduces, DIVIDES, CLIP, ADDS)[0] == line
    assert place(wrong, reduces, both=(DOUBLES,))[0] == line


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory):
    """A bias whose gradient is wrong as no reduction makes it."""
    other = only("main_grad", "fc1.bias", lambda r, at, part: part + draw("noise", part.shape))
    return rung(tmp_path_factory.mktemp("noisy"), Point.of(dp=2), other, limit=0)


def test_a_wrappers_gradients_are_changed_by_the_program_if_no_reduction_makes_the_error(
    noisy,
) -> None:
    assert place(noisy, DDP, CLIP, ADDS) == ("/me/fit.py:35", "changes gradients by add_")
    assert place(noisy, DDP, CLIP, both=(ADDS,))[0] == DDP.at
    inside = Site("write", "/env/site-packages/framework/loop.py:5", "/me/fit.py:30", "add_")
    assert place(noisy, DDP, inside)[0] == DDP.at


def test_a_norm_wrong_by_the_factor_of_a_line_is_located_at_this_line(tmp_path: Path) -> None:
    """Clipping removes the factor from the gradients."""
    double = only("grad_norm", "grad_norm", lambda r, at, part: part * 2)
    doubled = rung(tmp_path, Point.of(dp=2), double)
    assert place(doubled, STEP, NORM, DOUBLES, phase="norm")[0] == DOUBLES.at
    assert place(doubled, STEP, NORM, DIVIDES, phase="norm")[0] == NORM.site


def test_a_wrong_norm_is_located_at_its_reduction_or_else_where_gradients_are_scaled(wrong) -> None:
    assert place(wrong, STEP, REDUCED, NORM, phase="norm")[0] == "/me/norm.py:5"
    assert place(wrong, STEP, CLIP, phase="norm")[0] == "/me/fit.py:38"


def test_a_norm_wrong_by_the_dp_size_is_located_at_the_gradient_reduction(
    tmp_path: Path,
) -> None:
    """Clipping inside the optimizer's step hides the factor from the gradients."""
    double = only("grad_norm", "grad_norm", lambda r, at, part: part * 2)
    doubled = rung(tmp_path, Point.of(dp=2), double, limit=0)
    assert place(doubled, STEP, REDUCED, NORM, phase="norm")[0] == REDUCED.caller
    assert place(doubled, STEP, NORM, phase="norm")[0] == NORM.site


def test_the_line_that_sums_gradients_over_a_given_axis_is_found(wrong) -> None:
    together = Reduction("all_reduce(SUM)", ("tp",), "/me/norms.py:9", "", 48)
    places = Places(noting(wrong, REDUCED, together).candidate, PROGRAM)
    assert places.summing("tp").source == "/me/norms.py:9"
    assert places.summing("cp") == NOWHERE


def test_an_optimizer_step_is_named_with_the_line_that_constructs_the_optimizer(wrong) -> None:
    source, what = place(wrong, STEP, ADAM, phase="optimizer")
    assert source == "/me/fit.py:40"
    assert what == "steps the optimizer; AdamW is constructed at /me/fit.py:20"


def test_the_step_of_an_optimizer_of_the_programs_own_class_is_named(wrong) -> None:
    own = Site("stepper", "/me/muon.py:12", name="Muon")

    source, what = place(wrong, STEP, ADAM, own, phase="optimizer")

    assert source == "/me/fit.py:40"
    assert what == "steps the optimizer; Muon.step is defined at /me/muon.py:12"


def test_the_functions_that_the_programs_own_step_calls_are_named(wrong) -> None:
    own = Site("stepper", "/me/muon.py:12", name="Muon")
    calls = [
        Site("steps", f"/me/muon.py:{n}", name=name)
        for n, name in ((12, "Muon.step"), (40, "newton"))
    ]

    _, what = place(wrong, STEP, own, *calls, phase="optimizer")

    assert what.endswith(
        "; Muon.step is defined at /me/muon.py:12, which runs newton at /me/muon.py:40"
    )


def test_a_forward_fault_outside_modules_is_located_where_the_model_is_called(wrong) -> None:
    source, what = place(wrong, MODEL, phase="forward")
    assert source == "/me/fit.py:30"
    assert what == "calls the model, through /env/site-packages/framework/loop.py:5"


@pytest.mark.parametrize(
    ("kind", "line"),
    [("main_grad", REDUCED.caller), ("optimizer_state", STEP.at), ("activation", "")],
)
def test_the_line_named_without_a_localisation_depends_on_the_kind_of_the_first_tensor(
    wrong, kind: str, line: str
) -> None:
    noted = noting(wrong, REDUCED, STEP)
    id = TensorId(0, None, kind, "fc1", "bias")  # type: ignore[arg-type]
    assert Places(noted.candidate, PROGRAM).of_tensor(id, compare(noted)).source == line


#: A loop of this package's fixtures, which trains a user's model, and the user's program.
LOOP = f"{Path(deepspeed.__file__).parent / 'loop.py'}:61"
USERS = Program(path="programs:train", file=str(Path(__file__)))
PROGRAM_LINE = f"{Path(__file__)}:1"
ENGINE = "/env/site-packages/deepspeed/runtime/engine.py:2500"


def of_a_loop(wrong, *lines: Reduction | Site, phase: Phase) -> tuple[str, str]:
    """The line named for a fault in a program that one of this package's loops trains."""
    noted = noting(wrong, *lines)
    comparison = with_factor(noted, compare(noted))
    return said(Places(noted.candidate, USERS).of_phase(phase, comparison, ["fc1.bias"]))


@pytest.mark.parametrize(
    ("what", "phase", "does"),
    [
        ("step", "optimizer", "steps the optimizer"),
        ("model", "data", "calls the model"),
        ("backward", "backward", "starts the backward"),
        ("write", "reduction", "changes gradients by mul_"),
        ("wrapper", "reduction", "applies mul_, which reduces the gradients"),
        ("loss", "loss", "reports the loss"),
    ],
)
def test_a_loop_of_our_fixtures_is_named_only_beside_the_users_program(
    wrong, what: What, phase: Phase, does: str
) -> None:
    source, text = of_a_loop(wrong, Site(what, LOOP, name="mul_"), phase=phase)
    assert source == PROGRAM_LINE
    assert f"the program; the loop that trains it {does} at " in text
    assert text.endswith("loop.py:61")


def test_a_line_of_a_framework_is_named_with_the_users_program(wrong) -> None:
    source, text = of_a_loop(wrong, Site("step", ENGINE), phase="optimizer")
    assert source == ENGINE
    assert text.startswith("steps the optimizer; the program is at ")
    assert text.endswith("test_localize_places.py:1")
    reduced = Reduction("all_reduce(SUM)", ("dp",), ENGINE, LOOP, 16)
    source, text = of_a_loop(wrong, reduced, phase="reduction")
    assert source == ENGINE
    assert text.endswith("test_localize_places.py:1")


def test_an_optimizer_that_a_loop_of_our_fixtures_constructs_has_no_line_of_its_own(wrong) -> None:
    made = Site("optimizer", LOOP, name="AdamW")
    assert "constructed" not in of_a_loop(wrong, Site("step", ENGINE), made, phase="optimizer")[1]


def test_the_users_own_line_is_named_before_that_of_the_program(wrong) -> None:
    source, text = of_a_loop(wrong, Site("step", ENGINE, "/me/fit.py:9"), phase="optimizer")
    assert source == "/me/fit.py:9"
    assert text == f"steps the optimizer, through {ENGINE}"


def test_an_optimizer_that_a_framework_constructs_and_steps_is_named_at_the_frameworks_line(
    wrong,
) -> None:
    """The user's one line calls a function of the framework that does both."""
    calls = "/me/fit.py:9"
    made = Site("optimizer", "/env/site-packages/deepspeed/make.py:3", calls, "AdamW")
    source, text = of_a_loop(wrong, Site("step", ENGINE, calls), made, phase="optimizer")
    assert source == calls
    assert text.endswith("; AdamW is constructed at /env/site-packages/deepspeed/make.py:3")


def test_in_whole_steps_a_line_of_the_step_is_named_for_every_tensor(wrong) -> None:
    """As for a buffer of a module, since no module is compared."""
    noted = noting(wrong, REDUCED, STEP, MODEL)
    ranks = []
    for rank in noted.candidate.ranks:
        steps = [msgspec.structs.replace(step, microbatches=0) for step in rank.steps]
        ranks.append(dataclasses.replace(rank, steps=steps))
    whole = noted.candidate.with_ranks(ranks)
    comparison = compare(noted)
    buffer = TensorId(0, None, "buffer", "fc1", "mean")
    assert Places(whole, PROGRAM).of_tensor(buffer, comparison).source == MODEL.user
    assert Places(noted.candidate, PROGRAM).of_tensor(buffer, comparison) == NOWHERE
    update = TensorId(0, None, "update", "fc1", "bias")
    assert whole_steps(comparison, Places(whole, PROGRAM)).source == REDUCED.caller
    assert Places(whole, PROGRAM).of_tensor(update, comparison).source == STEP.at


BACKWARD = Site("backward", "/me/fit.py:33")
NO_SYNC = Site("no_sync", "/me/fit.py:31")
SYNC = Site("sync", "/me/fit.py:32")
CLEARS = Site("clear", "/me/fit.py:29")


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory):
    """A bias of 16 elements of whose gradient each rank of dp holds a term."""

    def term(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
        own = draw("term", part.shape).to(part.dtype)
        return own if at["dp"] else part - own

    edit = only("main_grad", "fc1.bias", term)
    return rung(tmp_path_factory.mktemp("partial"), Point.of(dp=2), edit, limit=0)


def test_a_missing_call_is_named_by_the_lines_of_the_backward_and_of_the_step(partial) -> None:
    source, what = place(partial, BACKWARD, STEP)
    assert source == BACKWARD.at
    assert what == (
        "starts the backward; no call between it and the optimizer's step at /me/fit.py:40 sums "
        "the gradient of fc1.bias over dp"
    )
    assert place(partial, BACKWARD, CLIP, STEP) == (source, what)
    assert place(partial, BACKWARD, ADDS, STEP)[0] == ADDS.at
    assert place(partial, BACKWARD, STEP, REDUCED)[0] == REDUCED.caller


def test_no_missing_call_is_claimed_of_a_gradient_that_is_wrong_otherwise(wrong) -> None:
    assert place(wrong, BACKWARD, STEP) == (STEP.at, "steps the optimizer")


def test_a_wrapper_that_never_reduced_is_named_behind_the_line_of_no_sync(partial) -> None:
    source, what = place(partial, DDP, NO_SYNC, BACKWARD, STEP)
    assert source == NO_SYNC.at
    assert what == (
        "calls no_sync; no reduction over dp was seen in the step; DistributedDataParallel is "
        "applied at /me/fit.py:25"
    )
    assert place(partial, DDP, BACKWARD, STEP)[0] == BACKWARD.at


def test_a_wrapper_that_reduced_in_some_backward_is_named_itself(partial, wrong) -> None:
    assert place(partial, DDP, NO_SYNC, SYNC, BACKWARD)[0] == DDP.at
    assert place(wrong, DDP, NO_SYNC, BACKWARD)[0] == DDP.at


def test_lost_micro_batches_are_located_where_gradients_are_cleared(wrong) -> None:
    assert place(wrong, DDP, BACKWARD, CLEARS, phase="accumulation") == (
        CLEARS.at,
        "clears gradients between two backwards of a step",
    )
    both = place(wrong, DDP, BACKWARD, phase="accumulation", both=(CLEARS,))
    assert both[0] == BACKWARD.at
