"""No program of these tests has more than ten lines that only the tests need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "support" / "third_party"
PROGRAMS = (
    "accelerate_ddp",
    "fsdp_llama",
    "lightning_ddp",
    "resnet_ddp",
    "synchronised_ddp",
    "titan",
    "titan_pipeline",
    "transformers_ddp",
    "transformers_tp",
)

#: Calls that only the tests need; a program needs a group, mesh or device anyway.
CALLS = re.compile(r"ctx\.(initialize|watch|step|microbatch|microbatches|follow|loss|grad_norm)\(")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_has_four_to_ten_lines_that_only_the_tests_need(program: str) -> None:
    lines = (FOLDER / f"{program}.py").read_text().splitlines()
    assert 4 <= sum(bool(CALLS.search(line)) for line in lines) <= 10
