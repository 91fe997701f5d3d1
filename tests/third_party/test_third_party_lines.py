"""No program of the lane has more than ten lines that are there for the tests alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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

#: What a program without tests would not say; a group, mesh or device it has anyway.
CALLS = re.compile(r"ctx\.(initialize|watch|step|microbatch|microbatches|follow|loss|grad_norm)\(")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_has_at_most_ten_lines_for_its_tests(program: str) -> None:
    lines = (Path(__file__).parent / f"{program}.py").read_text().splitlines()
    assert 4 <= sum(bool(CALLS.search(line)) for line in lines) <= 10
