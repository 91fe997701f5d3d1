"""Records a training of two ranks and resumes it once for each fault; gives the findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.replay.resume.judge import differences
from pytest_trainsafe.launch import Launcher, Task, raise_for_failure
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import Resume
from tests.support.replay import resume_programs
from tests.support.replay.resume_programs import make_job, make_spec


def resumed_ranks(
    launcher: Launcher, folder: Path, program: str, faults: Sequence[str], before: int, steps: int
) -> dict[str, Sequence[Finding]]:
    """The findings for each fault, which is an argument of the program and "" for none.

    All faults are in the code that loads, so they share the two uninterrupted Runs. `program` is a
    "module:function".
    """
    point = {"dp": 2}
    whole = make_spec(program, {}, point)
    saved = make_spec(program, {}, point, Resume(before))
    jobs = [make_job(whole, folder / "whole", folder), make_job(saved, folder / "saved", folder)]
    for number, fault in enumerate(faults):
        spec = make_spec(program, {"fault": fault}, point, Resume(before, saved))
        jobs.append(make_job(spec, folder / f"fault{number}", folder))
    task = Task.of(resume_programs.record_all, jobs, world_size=2)
    raise_for_failure(launcher.run(task, timeout=120, workdir=folder))
    one, other = Trace.open(folder / "whole"), Trace.open(folder / "saved")
    return {
        fault: differences(one, other, Trace.open(folder / f"fault{number}"), before, steps)
        for number, fault in enumerate(faults)
    }
