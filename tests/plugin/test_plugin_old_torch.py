"""A torch that is older than the floor in pyproject.toml is refused before anything runs."""

from __future__ import annotations

from importlib import metadata

import pytest
from packaging.requirements import Requirement

MARKED = """
    import pytest

    @pytest.mark.trainsafe("program:train", tp=[1, 2])
    def test_it(trainsafe):
        pass
"""


@pytest.fixture
def install_torch(project):
    """Make the project see the metadata of another torch before that of the real one."""

    def install(version):
        info = project.path / f"torch-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")

    return install


def floor():
    (needed,) = [
        each
        for each in map(Requirement, metadata.requires("pytest-trainsafe") or [])
        if each.name == "torch"
    ]
    return needed


@pytest.mark.parametrize("version", ["1.13.0", "2.5.1+cu124"])
def test_an_old_torch_is_a_usage_error_that_names_its_version_and_the_minimum(
    project, install_torch, version
):
    project.makepyfile(test_marked=MARKED)
    install_torch(version)

    result = project.runpytest_inprocess()

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = f"ERROR: torch {version} is installed, and pytest-trainsafe needs {floor()}: pip *"
    result.stderr.fnmatch_lines([message])


def test_an_xdist_worker_reports_an_old_torch(project, install_torch):
    pytest.importorskip("xdist")
    project.makepyfile(test_marked=MARKED)
    install_torch("2.5.1")

    result = project.runpytest_subprocess("-n", "1")

    assert result.ret != 0
    result.stdout.fnmatch_lines(["*torch 2.5.1 is installed, and pytest-trainsafe needs *"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_a_source_build_of_the_oldest_supported_torch_is_accepted(project, install_torch):
    project.makepyfile(test_marked=MARKED)
    (oldest,) = floor().specifier
    install_torch(f"{oldest.version}.0a0+git1234")

    project.runpytest_subprocess().assert_outcomes(passed=2)


def test_a_suite_without_trainsafe_tests_runs_with_any_torch(project, install_torch):
    project.makepyfile("def test_it(): pass")
    install_torch("1.13.0")

    project.runpytest_subprocess().assert_outcomes(passed=1)


def test_an_old_torch_is_an_error_of_torchrun_group_without_the_marker(project, install_torch):
    project.makepyfile("def test_it(torchrun_group): pass")
    install_torch("2.5.1")

    result = project.runpytest_subprocess()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["torch 2.5.1 is installed, and pytest-trainsafe needs *"])
