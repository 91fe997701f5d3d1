"""The odd rank is found from the stacks of the ranks; without a minority no rank is odd."""

from __future__ import annotations

import pytest
import torch

from pytest_trainsafe.launch.collectives import ledger_check
from pytest_trainsafe.launch.supervise.stacks import (
    Place,
    main_thread,
    odd_ranks,
    place_of,
    without_ours,
)

DUMP = f"""\
Thread 0x00007f01 (most recent call first):
  File "/lib/worker.py", line 7 in work

Current thread 0x00007f00 (most recent call first):
  File "{torch.__path__[0]}/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{torch.__path__[0]}/distributed/c10d_logger.py", line 83 in wrapper
  File "{ledger_check.__file__}", line 198 in recorded
  File "/home/me/train.py", line 12 in reduce_gradients
  File "/home/me/train.py", line 40 in train
  File "<frozen runpy>", line 88 in _run_code
"""


def test_a_place_is_the_users_line_and_the_torch_function_it_called() -> None:
    place = place_of(DUMP)
    assert place == Place("/home/me/train.py", 12, "reduce_gradients", "all_reduce")
    assert str(place) == "in all_reduce at /home/me/train.py:12 (reduce_gradients)"


@pytest.mark.parametrize(
    ("called", "waits_in"),
    [
        (["_get_default_group", "get_rank"], ""),
        (["broadcast_object_list", "_load", "get_model_state_dict"], "get_model_state_dict"),
    ],
)
def test_a_function_that_answers_at_once_is_no_wait(called: list[str], waits_in: str) -> None:
    file = f"{torch.__path__[0]}/distributed/distributed_c10d.py"
    frames = "".join(f'  File "{file}", line 1 in {name}\n' for name in called)
    place = place_of(f'{frames}  File "/home/me/train.py", line 12 in train\n')
    assert place == Place("/home/me/train.py", 12, "train", waits_in)


def test_a_decorator_around_a_function_of_this_package_is_not_what_a_rank_waits_in() -> None:
    outer = f'  File "{torch.__path__[0]}/utils/_contextlib.py", line 124 in decorate_context\n'
    user = '  File "/home/me/train.py", line 12 in reduce_gradients\n'
    place = place_of(DUMP.replace(user, outer + user))
    assert place == Place("/home/me/train.py", 12, "reduce_gradients", "all_reduce")


def test_the_last_of_several_stack_dumps_is_used() -> None:
    later = DUMP.replace("line 12", "line 13")
    assert ("/home/me/train.py", 13, "reduce_gradients") in main_thread(DUMP + later)
    assert ("/home/me/train.py", 12, "reduce_gradients") not in main_thread(DUMP + later)


def test_a_stack_dump_is_shown_without_frames_and_threads_of_the_plugin() -> None:
    ours = f"""\
Thread 0x00007f02 (most recent call first):
  File "{ledger_check.__file__}", line 100 in _answer

"""
    shown = without_ours(ours + DUMP + "\nExtension modules: torch._C, yaml._yaml (total: 2)\n")
    assert shown.startswith("Current thread")
    assert "Extension modules" not in shown
    assert ledger_check.__file__ not in shown
    assert "Thread 0x00007f02" not in shown
    assert shown.count("Thread 0x00007f01") == shown.count("Current thread 0x00007f00") == 1
    assert "line 12 in reduce_gradients" in shown


def test_an_empty_stack_dump_has_no_place() -> None:
    assert place_of("") is None


WAITS = Place("train.py", 12, "reduce", "all_reduce")
WAITS_ELSEWHERE = Place("train.py", 20, "gather", "all_gather")
WORKS = Place("train.py", 30, "compute")


def test_the_rank_that_does_not_wait_is_odd() -> None:
    assert odd_ranks({0: WAITS, 1: WORKS}, []) == [1]


def test_a_rank_that_finished_while_others_wait_is_odd() -> None:
    assert odd_ranks({0: WAITS, 2: WAITS}, [1]) == [1]


def test_the_minority_of_the_waiting_ranks_is_odd() -> None:
    assert odd_ranks({0: WAITS, 1: WAITS_ELSEWHERE, 2: WAITS}, []) == [1]


def test_no_rank_is_odd_without_a_minority() -> None:
    assert odd_ranks({0: WAITS, 1: WAITS}, []) == []
    assert odd_ranks({0: WAITS, 1: WAITS_ELSEWHERE}, []) == []
    assert odd_ranks({0: None, 1: None}, []) == []
