"""What ranks print is in the report of their test, as pytest's own captures are."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from pytest_trainsafe.launch.output import HEAD, TAIL

MODEL = """
import logging
import os
import sys
import warnings

import torch


def train(ctx, wrong=False, raises=False, loud=False, silent=False):
    net = torch.nn.Linear(4, 4).to(ctx.dtype)
    ctx.initialize(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.watch(net, optimizer)
    size, rank = ctx.point.size("dp"), int(os.environ["RANK"])
    if not silent:
        print(f"rank {rank} of {size} has a \\x1b[31mmodel")
        logging.getLogger("model").warning("logged by rank %d of %d", rank, size)
        warnings.warn(f"warned by rank {rank} of {size}")
    if loud and size > 1:
        print("first line")
        for _ in range(100):
            sys.stdout.write(("x" * 99 + "\\n") * 10_000)
        print("last line")
    if raises and rank == 1:
        raise ValueError("no samples are left")
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                data = torch.full((2, 4), 1.0 + index, dtype=ctx.dtype)
                loss = net(data).square().sum()
                ctx.loss(loss)
                loss.backward()
        if size > 1 and not wrong:
            for each in net.parameters():
                torch.distributed.all_reduce(each.grad, group=ctx.group("dp"))
        optimizer.step()
"""

TESTS = """
import pytest
from model import train
from pytest_trainsafe import assert_trainsafe


def train_here(**options):
    return pytest.mark.trainsafe(train, dp=2, dtype=["float64"], args=options)


@train_here(wrong=True)
def test_wrong(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@train_here(raises=True)
def test_raises(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@train_here(wrong=True, loud=True)
def test_loud(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@train_here(wrong=True, silent=True)
def test_silent(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@train_here()
def test_right(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


@pytest.fixture
def model(pytester, without_hypothesis, shared_fork_server):
    pytester.makepyfile(model=MODEL, test_model=TESTS)
    pytester.makeini("[pytest]\npythonpath = .\njunit_logging = all\ntrainsafe_localize = off\n")
    return pytester


def captured(pytester, xml: str) -> dict[str, str]:
    """The whole output of each test in a JUnit file."""
    cases = ElementTree.parse(pytester.path / xml).iter("testcase")
    return {
        case.get("name", "").partition("[")[0]: "".join(
            each.text or "" for each in case if each.tag in ("system-out", "system-err")
        )
        for case in cases
    }


def test_the_report_of_a_failing_test_has_the_output_of_its_ranks(model):
    result = model.runpytest_inprocess("--junitxml=run.xml", "-rN")
    result.assert_outcomes(failed=4, passed=1)
    shown = result.stdout.str()
    output = captured(model, "run.xml")

    # of the candidate, not of the reference, which has one rank
    wrong = shown.partition("_ test_wrong")[2].partition("_ test_raises")[0]
    for rank in range(2):
        result.stdout.fnmatch_lines(
            [
                f"-* Captured stdout, rank {rank} of 2 -*",
                rf"rank {rank} of 2 has a \x1b*31mmodel",
                f"-* Captured stderr, rank {rank} of 2 -*",
                f"logged by rank {rank} of 2",
                f"*model.py:*: UserWarning: warned by rank {rank} of 2",
            ]
        )
        assert f"Captured stderr, rank {rank} of 2" in wrong
        assert f"rank {rank} of 2 has a \\x1b[31mmodel" in output["test_wrong"]
        assert f"logged by rank {rank} of 2" in output["test_wrong"]
        assert f"rank {rank} of 2:\n" in output["test_wrong"]
    assert "of 1 has a" not in shown
    assert "\x1b[31m" not in shown

    raises = shown.partition("_ test_raises")[2].partition("_ test_loud")[0]
    sections = raises.partition("Captured stdout, rank 0 of 2")[2]
    assert "rank 1 of 2 has a" in sections
    assert "warned by rank 1 of 2" in sections
    assert "no samples are left" in raises
    # Once, in the section of its rank, and not in the failure's message too.
    assert raises.count("UserWarning: warned by rank 1 of 2") == 1
    assert "stderr of rank 1:" not in raises
    assert "no samples are left" not in sections  # the traceback is in the failure's message

    loud = shown.partition("_ test_loud")[2].partition("_ test_silent")[0]
    assert loud.count("\nfirst line\n") == loud.count("\nlast line\n") == 2
    assert loud.count("of 100,0") == loud.count("bytes are left out; ") == 2
    assert loud.count("bytes are left out; --trainsafe-keep-traces DIR keeps all of it ...]") == 2
    assert len(loud) < 4 * (HEAD + TAIL) + 10_000

    assert "Captured stdout" not in shown.partition("_ test_silent")[2]
    assert "has a" not in output["test_silent"]
    assert "rank 1 of 2 has a" in output["test_right"]  # as pytest's own captures


def test_what_to_show_of_captures_holds_for_ranks_too(model):
    result = model.runpytest_inprocess("-k", "test_wrong", "--show-capture=stderr")

    shown = result.stdout.str()
    assert "Captured stderr, rank 1 of 2" in shown
    assert "Captured stdout" not in shown


def test_what_a_failed_rank_printed_is_in_the_message_if_no_section_shows_it(model):
    result = model.runpytest_inprocess("-k", "test_raises", "--show-capture=no")

    shown = result.stdout.str()
    assert "Captured stderr" not in shown
    assert shown.count("UserWarning: warned by rank 1 of 2") == 1
    result.stdout.fnmatch_lines(["E*stderr of rank 1:"])


def test_the_ranks_of_a_torchrun_group_are_in_the_report_too(model):
    model.makepyfile(
        helper='import os\n\n\ndef greet():\n    print("hello from", os.environ["RANK"])\n',
        test_model="""
        from helper import greet

        def test_none(torchrun_group):
            assert torchrun_group.run(greet, world_size=2) == []
        """,
    )
    result = model.runpytest_inprocess()

    result.stdout.fnmatch_lines(
        ["-* Captured stdout, rank 0 of 2 -*", "hello from 0", "-* rank 1 of 2 -*", "hello from 1"]
    )
