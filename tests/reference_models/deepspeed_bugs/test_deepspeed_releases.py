"""Old releases of DeepSpeed train with the current torch, and a bug of one of them is found."""

from __future__ import annotations

import os

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.fixtures.deepspeed.rules import OLDEST
from pytest_trainsafe.judges.compare.ladder.ladder import climb
from pytest_trainsafe.judges.compare.text.message import message_of
from pytest_trainsafe.reference_models import deepspeed_bugs
from pytest_trainsafe.reference_models.deepspeed_bugs.install import install, reachable
from pytest_trainsafe.reference_models.deepspeed_bugs.programs import small as program
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells

pytest.importorskip("deepspeed")


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """A folder for releases; skips the test if none can be installed."""
    why = reachable()
    if why:
        pytest.skip(f"no release of DeepSpeed can be installed here: {why}")
    return tmp_path_factory.mktemp("releases")


@pytest.fixture(scope="module")
def release(releases):
    """DeepSpeed 0.13.2, of February 2024."""
    return install("0.13.2", releases)


#: Run with the release instead of the installed DeepSpeed, which `train` asserts.
SUPPORTED = """
import pytest
from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.fixtures.deepspeed import deepspeed_program
from pytest_trainsafe.reference_models.deepspeed_gpt import CONFIG

# Of the parameters that stay gathered this release waits for the last one only, and gloo's
# collectives end in any order: values of the others may be read too early.
GATHERED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}

@deepspeed_program({**CONFIG, **GATHERED}, microbatches=2, steps=2)
def train(framework):
    from pytest_trainsafe.reference_models.plain.gpt import PlainGPT, Sizes, text

    if framework == "deepspeed":
        import deepspeed
        assert deepspeed.__version__.startswith("RELEASE"), deepspeed.__version__
    sizes = Sizes(layers=1)
    return PlainGPT(sizes), lambda step, index: text(sizes, step, index, 2)

@pytest.mark.trainsafe(train, zero=[3], dp=[2])
def test_it(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


@pytest.mark.slow
def test_the_oldest_supported_release_passes_at_stage_3(releases, pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(install(OLDEST, releases)), prepend=os.pathsep)
    pytester.makepyfile(test_it=SUPPORTED.replace("RELEASE", OLDEST))

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--trainsafe-device=cpu")

    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_clipping_that_scales_gradients_up_is_found_in_its_release(release, tmp_path):
    bug = deepspeed_bugs.find("ds-5150")
    # A separate session: the ranks of other tests are forked with the installed DeepSpeed imported.
    session = Session(Settings(localize=0.0), tmp_path)
    try:
        triggering, silent = (
            report_of(session, where, release) for where in (bug.triggers, bug.silent)
        )
    finally:
        session.close()
    assert f"starts at     {bug.tensor} · {bug.kind} · step {bug.step}" in triggering
    assert silent == ""


def report_of(session, where, release):
    axes = {axis: [value] for axis, value in where.items()}
    declared = read_marker([program.train], {**axes, "candidate_args": {"release": str(release)}})
    (cell,) = cells(declared, session.settings, lambda *_: None)
    return message_of(climb(session.candidate(cell.case), session.reference(cell.case), [], []))


def test_a_folder_without_a_release_is_refused_with_the_install_command(tmp_path):
    from pytest_trainsafe.reference_models.deepspeed_bugs.releases import start_release

    with pytest.raises(FileNotFoundError, match="pip install --no-deps --target"):
        start_release(str(tmp_path))
