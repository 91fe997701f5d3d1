"""Every silent error of one process has the effect that its report describes.

The healthy version of the program does not have it; before the error acts, both have equal losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_trainsafe.reference_models import silent_errors
from pytest_trainsafe.reference_models.silent_errors import ERRORS, NEW, REPRODUCED
from pytest_trainsafe.reference_models.training.outcome import Outcome

#: Whether the error happened, from the outcome of the program.
HAPPENED: dict[str, Callable[[Outcome], bool]] = {
    "pt-f84911": lambda run: run.facts["moved"] == 0 < run.facts["statistics"],
    "pt-84803": lambda run: run.facts["arrived"] == [0.0] * len(run.losses),
    "so-60335387": lambda run: run.facts["carried"][0] == 0 < min(run.facts["carried"][1:]),
    "tf-23723": lambda run: max(run.facts["generated"]) > run.facts["limit"],
    "so-67180955": lambda run: run.facts["repeated"] == len(run.losses) // 2,
    "lt-725": lambda run: {*run.facts["dtypes"]} == {"float32"},
    "pt-115607": lambda run: run.facts["moved"] == [True, True, False, False, False, False],
    "tf-34204": lambda run: {*run.facts["rows"]} == {1} != {run.facts["examples"]},
    "tf-33844": lambda run: min(run.facts["spread"]) > 0,
    "tf-17877": lambda run: max(run.facts["writes"].values()) == 3,
    "tf-29903": lambda run: len(run.facts["missing"]) == 3 and run.facts["apart"] > 0,
    "tf-33455": lambda run: run.facts["max_steps"] == 6 and run.facts["batches"] == 10,
    "bc-86": lambda run: run.facts["lost"][:2] == [0.0, 0.0] and min(run.facts["lost"][2:]) >= 0.25,
    "pt-51800": lambda run: run.facts["gain"] > 10,
    "mm-702": lambda run: run.facts["idle"] == 4,
    "ac-2665": lambda run: run.facts["moved"] == 0 and not run.facts["held"],
    "ds-5489": lambda run: run.facts["missing"] == ["0.bias", "0.weight"],
    "ds-6772": lambda run: len({*run.facts["places"]}) < len(run.facts["places"]),
}

#: Whether the program is healthy, from its outcome.
HEALTHY: dict[str, Callable[[Outcome], bool]] = {
    "pt-f84911": lambda run: run.facts["moved"] > 0,
    "pt-84803": lambda run: min(run.facts["arrived"]) > 1,
    "so-60335387": lambda run: run.facts["carried"] == [0.0] * len(run.losses),
    "tf-23723": lambda run: {*run.facts["generated"]} == {run.facts["limit"]},
    "so-67180955": lambda run: run.facts["repeated"] == 0,
    "lt-725": lambda run: {*run.facts["dtypes"]} == {"bfloat16"},
    "pt-115607": lambda run: run.facts["moved"] == [True, True, False, True, True, True],
    "tf-34204": lambda run: {*run.facts["rows"]} == {run.facts["examples"]},
    "tf-33844": lambda run: run.facts["spread"] == [0.0] * len(run.facts["spread"]),
    "tf-17877": lambda run: {*run.facts["writes"].values()} == {1},
    "tf-29903": lambda run: run.facts["missing"] == [] and run.facts["apart"] == 0,
    "tf-33455": lambda run: run.facts["max_steps"] == 9 and run.facts["batches"] == 15,
    "bc-86": lambda run: run.facts["lost"] == [0.0] * len(run.losses),
    "pt-51800": lambda run: run.facts["gain"] < 1,
    "mm-702": lambda run: run.facts["idle"] == 0,
    "ac-2665": lambda run: run.facts["moved"] > 0 and run.facts["held"],
    "ds-5489": lambda run: run.facts["missing"] == [] and run.facts["written"] == 6,
    "ds-6772": lambda run: run.facts["places"] == [0, 1, 2],
    "ds-6770": lambda run: run.facts["names"] == ["0.weight", "0.bias", "2.weight", "2.bias"],
}

ALONE = [error for error in ERRORS if not error.axis]


@pytest.mark.parametrize("error", ALONE, ids=lambda error: error.name)
def test_a_faulty_program_shows_the_reported_effect_and_its_healthy_version_does_not(error) -> None:
    train = silent_errors.program(error)

    healthy = train(faulty=False, seed=1)

    assert all(map(math.isfinite, healthy.losses))
    assert HEALTHY[error.name](healthy)
    if error.raises:
        with pytest.raises(KeyError):
            train(faulty=True, seed=1)
        return
    faulty = train(faulty=True, seed=1)
    assert all(map(math.isfinite, faulty.losses))
    assert HAPPENED[error.name](faulty)
    assert not HAPPENED[error.name](healthy)
    if isinstance(error.trigger, int):  # nothing differs before the error acts
        assert faulty.losses[: error.trigger] == healthy.losses[: error.trigger]


def test_the_catalogue_contains_both_tables_of_the_paper() -> None:
    assert [error.number for error in REPRODUCED] == [f"B{n}" for n in range(1, 21)]
    assert {error.name for error in NEW} == {
        *("ac-2665", "ds-6770", "ds-5489", "ds-6714", "ds-6772", "ds-6089")
    }
    assert len({error.module for error in ERRORS}) == len(ERRORS) == 26


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.name)
def test_the_docstring_of_a_program_cites_the_first_source_of_its_entry(error) -> None:
    module = silent_errors.program(error).__module__
    cited = __import__(module, fromlist=["train"]).__doc__ or ""

    assert error.sources[0] in cited
    assert all(source.startswith("https://") for source in error.sources)
    assert "learn" in error.judges


def test_shared_functions_of_programs_do_not_mention_the_faulty_switch() -> None:
    # An observer would see such an argument, and find the error by the name of its switch.
    folder = Path(silent_errors.__file__).parent.parent / "toolkit"
    assert not [path.name for path in folder.glob("*.py") if "faulty" in path.read_text()]


def test_causes_are_recognized_by_pattern_and_unknown_errors_are_refused() -> None:
    error = silent_errors.find("so-60335387")
    assert error.named("torch.optim.Adam.zero_grad")
    assert not error.named("torch.optim.Adam.step")
    with pytest.raises(ValueError, match="no silent error 'B4'; choose one of pt-f84911, "):
        silent_errors.find("B4")
