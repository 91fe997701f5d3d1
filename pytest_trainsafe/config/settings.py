"""The run's settings, as one frozen object.

Plain data: sessions and reports use it and never read pytest's options.  `table` has the option of
each setting, and `read` creates the object.
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
    """The settings of a run, from options, ini values and a test's marker.

    `sweep` holds the axis words as written, from the command line or else from the ini file
    (`sweep_from_ini`).  `dtypes` names the rungs of the precision ladder; empty means automatic.
    `timeout` is in seconds, per rank group.  `record` is one of RECORDINGS.  An empty
    `record_kinds` records every kind.  `keep_traces` is a directory, or "" to keep none.
    `slots` is how many ranks may train on this machine at once, 0 for one per core.  `no_cache`
    runs every reference; `cache_size` bounds the cached ones, in bytes.  `cache_inputs` holds
    absolute patterns of files, and "$NAME" for environment variables, that references depend on.
    `localize` is the number of seconds that each failing test may spend on finding the faulty
    code, 0 for none; `judge/localize/budget.py` bounds the time of a process.
    `annotate` is the root directory of node ids, below which missing annotations are written;
    "" if they are not written.
    `rng` says whether ranks keep the RNG ledger.
    `replay` is the folder of a trace whose Run continues from a checkpoint, and the step that
    failed, None to find it; None replays nothing.
    `profile` is the name of the profile in force, "" for none; its values are in the other fields.
    `adapters` and `judges` are the import paths of the project's own framework adapters and judges,
    and `launchers` the names of its own launchers, each with the import path of its factory.
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
    replay: tuple[str, int | None] | None = None
    adapters: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()
    launchers: tuple[tuple[str, str], ...] = ()


SETTINGS = pytest.StashKey[Settings]()

#: The key under which an xdist controller passes its parsed axis words to a worker.
WORKER_SWEEP = "trainsafe_sweep"
