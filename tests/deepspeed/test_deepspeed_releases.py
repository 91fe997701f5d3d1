"""A release of old trains beside the torch of today, and what it got wrong is found in it."""

from __future__ import annotations

import pytest

from pytest_trainsafe.ladder import climb
from pytest_trainsafe.reference_models import deepspeed_bugs
from pytest_trainsafe.reference_models.deepspeed_bugs import program
from pytest_trainsafe.reference_models.deepspeed_bugs.install import install, reachable
from pytest_trainsafe.session import Session
from pytest_trainsafe.settings import Settings
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells

pytest.importorskip("deepspeed")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """DeepSpeed 0.13.2, of February 2024."""
    why = reachable()
    if why:
        pytest.skip(f"no release of DeepSpeed can be installed here: {why}")
    return install("0.13.2", tmp_path_factory.mktemp("releases"))


@pytest.mark.slow
def test_the_release_that_clipped_upwards_is_told_from_plain_torch(release, tmp_path):
    bug = deepspeed_bugs.find("ds-5150")
    # A session of its own: other tests' ranks are forked with the installed DeepSpeed imported.
    session = Session(Settings(localize=0.0), tmp_path)
    try:
        triggering, silent = (said(session, where, release) for where in (bug.triggers, bug.silent))
    finally:
        session.close()
    assert f"starts at     {bug.tensor} · {bug.kind} · step {bug.step}" in triggering
    assert silent == ""


def said(session, where, release):
    axes = {axis: [value] for axis, value in where.items()}
    declared = read_marker([program.train], {**axes, "candidate_args": {"release": str(release)}})
    (cell,) = cells(declared, session.settings, lambda *_: None)
    return climb(session.candidate(cell.case), session.reference(cell.case), [], [])


def test_a_folder_without_a_release_is_refused_with_the_command(tmp_path):
    from pytest_trainsafe.reference_models.deepspeed_bugs.releases import start_release

    with pytest.raises(FileNotFoundError, match="pip install --no-deps --target"):
        start_release(str(tmp_path))
