"""The command line options and their ini twins.  `settings` reads them; the command line wins.

An option that takes several values takes them in one word, separated by commas.
Help texts start with a capital and end without a full stop.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_trainsafe.config.grammar import OPTION, gather
from pytest_trainsafe.config.settings import DEVICES, LAUNCHERS, NETWORKS, RECORDINGS, Settings
from pytest_trainsafe.core.axes import DTYPES
from pytest_trainsafe.core.usage import listing

if TYPE_CHECKING:
    import pytest

_DEFAULT = Settings()

#: Name -> metavar and help text.  Each has an ini twin: `trainsafe_seed`.
_OPTIONS = {
    "max-world-size": (
        "N",
        f"Skip points of more than N ranks (default {_DEFAULT.max_world_size})",
    ),
    "dtype": (
        "DTYPES",
        f"Dtypes to judge in, in order: auto (default) or some of {listing(DTYPES)}",
    ),
    "launcher": (
        "NAME",
        f"How rank groups are started: {listing(LAUNCHERS)} (default {_DEFAULT.launcher})",
    ),
    "device": ("DEVICE", f"Where ranks train: {listing(DEVICES)} (default {_DEFAULT.device})"),
    "network": (
        "NETWORK",
        f"Network of the ranks: {listing(NETWORKS)}; private connects one group (default auto)",
    ),
    "timeout": ("SECONDS", f"Time limit of a group of ranks (default {_DEFAULT.timeout:g})"),
    "seed": ("SEED", f"Seed of every run (default {_DEFAULT.seed})"),
    "accept": ("CHECKS", "Checks that may be inconclusive without failing a test"),
    "record": (
        "WHAT",
        f"What to keep of tensors: {listing(RECORDINGS)} (default {_DEFAULT.record})",
    ),
    "record-kinds": (
        "KINDS",
        "Kinds of tensors to record, such as activation,main_grad (default all)",
    ),
    "record-modules": ("PATTERNS", "Names of modules whose activations are recorded (default *)"),
    "localize": (
        "SECONDS",
        f"Time limit per test to find the faulty code, or off (default {_DEFAULT.localize:g})",
    ),
    "keep-traces": ("DIR", "Keep every trace below this directory"),
    "slots": ("N", "Ranks to train on this machine at once (default one per core, minimum 2)"),
    "cache-size": ("SIZE", "Disk space for references of earlier runs (default 2GB)"),
    "cache-inputs": (
        "PATTERNS",
        "Files that programs read, and $VARIABLES: a reference is run again when one changes",
    ),
}


def add_options(parser: pytest.Parser) -> None:
    """Adds the option group `trainsafe`; every option has an ini twin of the same meaning."""
    group = parser.getgroup("trainsafe", "parallel training compared with a trusted run")
    sweep_help = (
        "Values for the axes that tests declare, such as tp=1,2 cp=1,2: one or more words, "
        "before or after paths"
    )
    group.addoption(
        OPTION, action="append", metavar="AXIS=VALUES", dest="trainsafe_sweep", help=sweep_help
    )
    parser.addini("trainsafe_sweep", f"{sweep_help} (see {OPTION})", type="args", default=[])
    for name, (metavar, text) in _OPTIONS.items():
        key = "trainsafe_" + name.replace("-", "_")
        group.addoption(f"--trainsafe-{name}", metavar=metavar, dest=key, default=None, help=text)
        parser.addini(key, f"{text} (see --trainsafe-{name})", default="")
    annotate = "Write missing annotations of tests: into the file the program read, or a new one"
    group.addoption(
        "--trainsafe-annotate", action="store_true", dest="trainsafe_annotate", help=annotate
    )
    parser.addini(
        "trainsafe_annotate", f"{annotate} (see --trainsafe-annotate)", type="bool", default=False
    )
    no_cache = "Run every reference instead of reusing those of earlier runs"
    group.addoption(
        "--trainsafe-no-cache", action="store_true", dest="trainsafe_no_cache", help=no_cache
    )
    parser.addini(
        "trainsafe_no_cache", f"{no_cache} (see --trainsafe-no-cache)", type="bool", default=False
    )


def separate_sweep_words(config: pytest.Config, arguments: list[str]) -> None:
    """Removes the axis words from the paths, before pytest uses either.

    pytest has already parsed the command line once to find its plugins and conftest files, and
    took the words for paths; its list of paths is corrected too.
    """
    if not any(argument.split("=")[0] == OPTION for argument in arguments):
        return
    here = config.invocation_params.dir
    # os.path.exists, unlike Path.exists, is False for a word that is too long for a path.
    taken = gather(arguments, lambda word: os.path.exists(here / word.split("::")[0]))
    paths: list[str] = config.known_args_namespace.file_or_dir
    for word in taken:
        if word in paths:
            paths.remove(word)
