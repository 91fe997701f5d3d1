"""Each part of a training's state that is not restored is named; if all is restored, it passes.

One group of two ranks records all Runs, except those of `reseeds`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.replay.resume.judge import differences
from pytest_trainsafe.launch import Launcher, Task, raise_for_failure
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import Resume
from tests.support.replay import resume_programs
from tests.support.replay.resume_programs import BEFORE, STEPS, make_job, make_spec

#: The state that is not restored, the codes of the findings, and words of the first finding.
FAULTS = [
    ("position lost", ["data_order"], "the uninterrupted training reads in step 3, micro-batch 0"),
    ("epoch not set", ["data_order"], "on rank 0 DistributedSampler.epoch is 0, not 1; step 4, "),
    ("step counter lost", ["step_counter"], "on rank 0 first.weight.step is 0, not 4; 3 more"),
    ("moments lost", ["moment", "step_counter"], "first.weight.exp_avg is absent; 7 more"),
    ("second moment lost", ["moment"], "on rank 0 first.weight.exp_avg_sq is all zeros; 3 more"),
    ("schedule restarted", ["lr_schedule"], "on rank 0 LambdaLR.last_epoch is 0, not 4"),
    ("learning rate lost", ["lr_schedule"], "on rank 0 group 0: lr is 0.00125, not 0.00625"),
    ("scaler lost", ["scaler"], "on rank 0 GradScaler.scale is 16.0, not 32.0"),
    ("model lost", ["model"], "on rank 0 first.weight has different values; 4 more of its values"),
    ("buffer lost", ["model"], "the model is not restored: on rank 0 average is all zeros"),
    ("state of rank 0", ["rng"], "torch cpu of rank 1 continues in the state of rank 0"),
    ("restored before the iterator", ["rng"], "rank 0 is 1 draw (2 numbers) ahead: the resumed "),
    (
        "rng not restored",
        ["rng"],
        "5 draws (98 numbers) behind: it continues from before bernoulli",
    ),
    ("attribute lost", ["unknown"], "no difference in a recorded state or input explains it"),
]

Found = Callable[[str], Sequence[Finding]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, run_launcher: Launcher) -> Found:
    """Gives the findings on a training with a fault in its resumption: `found("scaler lost")`."""
    folder = tmp_path_factory.mktemp("resume")
    point = {"dp": 2}
    whole, saved = make_spec("train", {}, point), make_spec("train", {}, point, Resume(BEFORE))
    drawing = make_spec("train", {"fault": "draws while it saves"}, point, Resume(BEFORE))
    jobs = [make_job(whole, folder / "whole", folder), make_job(saved, folder / "saved", folder)]
    jobs.append(make_job(drawing, folder / "draws while it saves", folder / "other"))
    for fault in ["", *(fault for fault, _, _ in FAULTS)]:
        spec = make_spec("train", {"fault": fault}, point, Resume(BEFORE, saved))
        jobs.append(make_job(spec, folder / (fault or "healthy"), folder))
    kept = [make_spec("checkpointed", {}, point, resume) for resume in (None, Resume(2))]
    kept.append(make_spec("checkpointed", {}, point, Resume(2, kept[1])))
    names = ["checkpointed whole", "checkpointed saved", "checkpointed"]
    jobs += [make_job(s, folder / n, folder / "kept") for s, n in zip(kept, names, strict=True)]
    alone = [make_spec("reseeds", {}, {}, resume) for resume in (None, Resume(BEFORE))]
    alone.append(make_spec("reseeds", {}, {}, Resume(BEFORE, alone[1])))
    names = ["reseeds whole", "reseeds saved", "reseeds"]
    single = [make_job(s, folder / n, folder / "alone") for s, n in zip(alone, names, strict=True)]
    for each, size in ((jobs, 2), (single, 1)):
        task = Task.of(resume_programs.record_all, each, world_size=size)
        raise_for_failure(run_launcher.run(task, timeout=120, workdir=folder))

    def judged(fault: str) -> Sequence[Finding]:
        prefix = f"{fault} " if fault in ("reseeds", "checkpointed") else ""
        saver = fault if fault.startswith("draws") else f"{prefix}saved"
        resumed = "healthy" if fault.startswith("draws") else fault or "healthy"
        whole, saved, again = (
            Trace.open(folder / name) for name in (f"{prefix}whole", saver, resumed)
        )
        before, steps = (2, 4) if fault == "checkpointed" else (BEFORE, STEPS)
        return differences(whole, saved, again, before, steps)

    return judged


def test_a_training_that_restores_all_of_its_state_has_no_finding(found):
    assert found("") == []


def test_a_training_that_seeds_in_each_step_passes_without_restoring_its_generator(found):
    assert found("reseeds") == []


def test_a_training_checkpoint_restores_all_state_of_two_ranks(found):
    assert found("checkpointed") == []


@pytest.mark.parametrize(("fault", "codes", "words"), FAULTS)
def test_each_state_that_is_not_restored_is_reported_with_its_code_and_first_difference(
    found, fault, codes, words
):
    findings = found(fault)

    assert [each.check for each in findings] == [f"resume:{code}" for code in codes], findings
    assert words in findings[0].message
    for each in findings:
        assert (each.verdict, each.judge, each.dtype) == ("fail", "replay", "float64")
        assert each.pattern is not None
        assert each.pattern.cause
        assert " · step " in each.pattern.text  # where the Runs first differ


def test_an_additional_draw_after_the_restore_is_reported_with_its_line(found):
    [finding] = found("restored before the iterator")

    assert Path(finding.source.rpartition(":")[0]) == Path(resume_programs.__file__)
    assert dict(finding.evidence)["draws"] == 1


def test_a_draw_in_the_code_that_saves_is_reported_with_its_line(found):
    [finding] = found("draws while it saves")

    assert finding.check == "resume:save"
    assert "the code that saves draws uniform (3) at " in finding.message
    assert Path(finding.source.rpartition(":")[0]) == Path(resume_programs.__file__)
