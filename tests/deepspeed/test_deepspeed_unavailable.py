"""What a machine cannot run is skipped, and the reason says what to do."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.fixtures.deepspeed import deepspeed_program
from pytest_trainsafe.fixtures.deepspeed import rules as deepspeed_rules
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve

ADAMW: dict[str, Any] = {"type": "AdamW", "params": {"lr": 1e-3}}


@deepspeed_program({"optimizer": ADAMW})
def train() -> Any: ...


def reason(point: Point, **config: Any) -> str:
    case = Case(
        point, resolve(train), Settings(device="cpu"), candidate_arguments={"config": config}
    )
    unavailable = case.program.traits.unavailable
    assert unavailable is not None
    return unavailable(case)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed_rules, "find_spec", lambda name: object())
    monkeypatch.setattr(deepspeed_rules, "installed_version", lambda: deepspeed_rules.OLDEST)


def test_nothing_stands_against_a_plain_config(installed: None) -> None:
    assert reason(Point.of(zero=3, dp=2)) == ""


def test_without_deepspeed_the_reason_is_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deepspeed_rules, "find_spec", lambda name: None)

    assert 'pip install "pytest-trainsafe[deepspeed]"' in reason(Point.of(dp=2))


@pytest.mark.parametrize("version", ["0.14.3", "0.9.5", "0.14.3+cpu"])
def test_a_release_that_is_too_old_is_named_with_the_oldest(
    installed: None, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(deepspeed_rules, "installed_version", lambda: version)

    told = reason(Point.of(dp=2))

    assert f"DeepSpeed {version} is installed" in told
    assert f'"deepspeed>={deepspeed_rules.OLDEST}"' in told


@pytest.mark.parametrize("version", ["0.14.4", "0.14.10", "0.19.8+abc", "1.0", ""])
def test_a_release_that_is_not_too_old_is_taken(
    installed: None, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(deepspeed_rules, "installed_version", lambda: version)

    assert reason(Point.of(dp=2)) == ""


def test_the_package_asks_for_no_older_release_than_is_taken() -> None:
    file = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(file.read_text())["project"]["optional-dependencies"]

    assert extras["deepspeed"] == [f"deepspeed>={deepspeed_rules.OLDEST}"]


def test_float16_on_a_cpu_without_it_is_named(
    installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deepspeed_rules, "has_float16", lambda: False)

    assert "take bfloat16" in reason(Point.of(dtype="float16"))


def test_swapping_to_a_disk_is_named(installed: None) -> None:
    offload = {"offload_optimizer": {"device": "nvme"}}

    assert "async_io" in reason(Point.of(zero=3), zero_optimization=offload)


def test_an_optimizer_that_must_be_compiled_needs_a_compiler(
    installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    own = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": False}}

    assert "install g++" in reason(Point.of(zero=2), optimizer=own)


def test_a_candidate_that_cannot_run_is_skipped_before_anything_is_launched(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        programs="""
        from pytest_trainsafe.fixtures.deepspeed import deepspeed_program

        @deepspeed_program({"optimizer": {"type": "AdamW"}})
        def train():
            raise AssertionError("launched")
        """,
        conftest="""
        import sys
        from pathlib import Path
        from pytest_trainsafe.fixtures.deepspeed import rules as deepspeed_rules

        sys.path.insert(0, str(Path(__file__).parent))
        deepspeed_rules.find_spec = lambda name: None
        """,
        test_it="""
        import programs, pytest
        from pytest_trainsafe import assert_trainsafe

        @pytest.mark.trainsafe(programs.train, dp=[1, 2])
        def test_it(reference_trace, candidate_trace):
            assert_trainsafe(candidate_trace, reference_trace)
        """,
    )

    result = pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider")

    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*pytest-trainsafe[[]deepspeed[]]*"])
