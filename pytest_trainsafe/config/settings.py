"""The run's settings, as one frozen object.

Plain data: sessions and reports take it from here and never look at pytest's options.  `table` has
the option of each, and `read` makes the object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from pytest_trainsafe.config.grammar import SweepWords

LAUNCHERS = ("auto", "warm", "torchrun")
DEVICES = ("auto", "cpu", "cuda")
NETWORKS = ("auto", "private", "host")
Recording = Literal["sketch", "full"]
RECORDINGS: tuple[Recording, ...] = ("sketch", "full")


@dataclass(frozen=True, slots=True)
class Settings:
    """What options, ini values and a test's marker say about a run.

    `sweep` holds the axis words as written, the command line's or else the ini file's;
    `sweep_from_ini` tells which.  `dtypes` names the rungs of the precision ladder, empty for
    the automatic ones.  `timeout` is in seconds and holds for one rank group.  `record` is one
    of RECORDINGS.  `record_kinds` empty records every kind.  `keep_traces` is a directory, or ""
    to keep none.
    `slots` is how many ranks may train on this machine at once, 0 for one a core.  `no_cache`
    runs every reference; `cache_size` bounds the kept ones, in bytes.  `cache_inputs` holds
    absolute patterns of files, and "$NAME" for environment variables, that references depend on.
    `localize` is the seconds that each failing test may spend on finding the code at fault, 0 for
    none; `judge/localize/budget.py` bounds what a process spends.
    `annotate` is the root directory, below which node ids are, where annotations that tests lack
    are to be written; "" where they are not.
    `rng` says whether ranks keep the RNG ledger.
    `profile` is the name of the profile in force, "" for none; its values are in the other fields.
    `adapters` and `judges` are the import paths of the project's own framework adapters and judges,
    and `launchers` the names of its own launchers, each with the import path of what makes it.
    """

    sweep: SweepWords = ()
    sweep_from_ini: bool = False
    max_world_size: int = 8
    dtypes: tuple[str, ...] = ()
    launcher: str = "auto"
    device: str = "auto"
    network: str = "auto"
    timeout: float = 300.0
    seed: int = 0
    accept: tuple[str, ...] = ()
    record: Recording = "full"
    record_kinds: tuple[str, ...] = ()
    record_modules: tuple[str, ...] = ("*",)
    keep_traces: str = ""
    slots: int = 0
    no_cache: bool = False
    cache_size: int = 2 * 10**9
    cache_inputs: tuple[str, ...] = ()
    localize: float = 60.0
    annotate: str = ""
    profile: str = ""
    rng: bool = True
    adapters: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()
    launchers: tuple[tuple[str, str], ...] = ()


SETTINGS = pytest.StashKey[Settings]()

#: The axis words an xdist worker is given by its controller, which has parsed them.
WORKER_SWEEP = "trainsafe_sweep"
