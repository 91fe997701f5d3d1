"""The healthy programs train in both of their variants; there are enough of each class."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys

import pytest

from pytest_trainsafe.reference_models import healthy
from pytest_trainsafe.reference_models.healthy import PROGRAMS

ALONE = [each for each in PROGRAMS if not each.axis]


@pytest.mark.parametrize("each", ALONE, ids=lambda each: each.name)
def test_a_healthy_program_learns(each) -> None:
    losses = healthy.program(each)(seed=1)

    assert len(losses) >= 5
    assert all(map(math.isfinite, losses))
    third = len(losses) // 3
    if each.falls:
        assert sum(losses[-third:]) < sum(losses[:third])


@pytest.mark.parametrize("each", ALONE, ids=lambda each: each.name)
def test_a_healthy_program_is_deterministic_and_its_second_variant_has_finite_losses(each) -> None:
    train = healthy.program(each)
    first = train(seed=2, **each.variants[0])

    assert train(seed=2, **each.variants[0]) == first
    assert all(map(math.isfinite, train(seed=2, **each.variants[1])))


def test_every_class_has_at_least_seven_programs() -> None:
    for family in healthy.FAMILIES:
        names = [each.name for each in PROGRAMS if each.family == family]
        assert len(set(names)) == len(names) >= 7


@pytest.mark.parametrize("each", PROGRAMS, ids=lambda each: each.name)
def test_variants_of_a_program_set_only_its_arguments(each) -> None:
    parameters = inspect.signature(healthy.program(each)).parameters

    assert len(each.variants) == 2
    for variant in each.variants:
        assert {*variant} <= {*parameters} - {"seed", "steps", "ctx"}


def test_an_unknown_program_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match=r"no healthy program 'vea'; choose one of digits, .*vae"):
        healthy.find("vea")


def test_the_catalogues_of_programs_do_not_import_torch() -> None:
    code = (
        "import sys\n"
        "import pytest_trainsafe.reference_models.healthy\n"
        "import pytest_trainsafe.reference_models.silent_errors\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
