"""Messages name the line that requests a collective, not a framework's wrapper of it."""

from __future__ import annotations

import os

import torch

from pytest_trainsafe.core import code_files as passing
from pytest_trainsafe.launch.collectives import ledger_check
from pytest_trainsafe.launch.supervise.stacks import place_of

PACKAGES = "/home/me/.venv/lib/python3.11/site-packages"


def test_a_place_is_outside_a_frameworks_wrappers_of_torch_distributed() -> None:
    dump = f"""\
Current thread 0x00007f00 (most recent call first):
  File "{torch.__path__[0]}/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{torch.__path__[0]}/_dynamo/eval_frame.py", line 1200 in _fn
  File "{PACKAGES}/deepspeed/comm/torch.py", line 290 in all_reduce
  File "{PACKAGES}/deepspeed/comm/comm.py", line 129 in log_wrapper
  File "{PACKAGES}/deepspeed/runtime/utils.py", line 962 in get_global_norm_of_tensors
  File "/home/me/train.py", line 12 in train
"""
    where = f"{PACKAGES}/deepspeed/runtime/utils.py:962 (get_global_norm_of_tensors)"
    assert str(place_of(dump)) == f"in all_reduce at {where}"


def test_only_files_that_wrap_collectives_pass_calls_on() -> None:
    assert passing.passes_on(f"{PACKAGES}/deepspeed/comm/comm.py")
    assert passing.passes_on("/home/me/releases/0.13.2/deepspeed/comm/torch.py")
    assert passing.passes_on(ledger_check.__file__)
    assert not passing.passes_on(f"{PACKAGES}/deepspeed/moe/sharded_moe.py")
    assert not passing.passes_on("/home/me/comm/torch.py")


def test_installed_packages_and_the_stdlib_are_distinguished_from_user_files() -> None:
    assert passing.is_installed(f"{PACKAGES}/deepspeed/moe/sharded_moe.py")
    assert passing.is_stdlib(os.__file__)
    for check in (passing.is_installed, passing.is_stdlib):
        assert not check("/home/me/train.py")
    assert not passing.is_stdlib(torch.__file__)
