"""Adds the options of `config/table.py` to pytest, each with an ini key of the same meaning.

The values that users give are read in `config/read.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_trainsafe.config.grammar import OPTION, gather
from pytest_trainsafe.config.table import DEFAULT_WORDS, OPTIONS, PROFILES_KEY

if TYPE_CHECKING:
    import pytest


#: The groups of options in `pytest --help`: name, description and options of each.
_GROUPS = (
    (
        "trainsafe",
        "trainsafe: points that run",
        ("sweep", "cover", "max-world-size", "plan", "shard", "from-plan", "profile"),
    ),
    (
        "trainsafe-ranks",
        "trainsafe: ranks and machine",
        ("launcher", "max-threads", "device", "network", "timeout", "slots"),
    ),
    (
        "trainsafe-judging",
        "trainsafe: what is recorded and judged",
        (
            *("dtype", "seed", "accept", "record", "record-kinds", "record-modules", "rng"),
            *("packs", "packs-report"),
        ),
    ),
    (
        "trainsafe-failures",
        "trainsafe: after a failure, and files that are written",
        (
            "localize",
            "debug",
            "annotate",
            "init",
            "replay",
            "learn",
            "keep-traces",
            "report",
            "github",
        ),
    ),
    (
        "trainsafe-references",
        "trainsafe: references of earlier runs",
        ("no-cache", "cache-size", "cache-inputs"),
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Adds the options in their groups, and for every option an ini key of the same meaning."""
    for option in OPTIONS:
        title, what = next((t, w) for t, w, names in _GROUPS if option.name in names)
        group = parser.getgroup(title, what)
        text, twin = option.full_help, f"{option.full_help} (see {option.flag})"
        if option.kind == "flag":
            group.addoption(option.flag, action="store_true", dest=option.key, help=option.help)
            parser.addini(option.key, f"{option.help} (see {option.flag})", "bool", default=False)
        elif option.kind == "words":
            group.addoption(
                option.flag, action="append", metavar=option.metavar, dest=option.key, help=text
            )
            parser.addini(option.key, twin, type="args", default=[])
        elif option.kind == "optional":
            group.addoption(
                option.flag,
                metavar=option.metavar,
                dest=option.key,
                nargs="?",
                const=DEFAULT_WORDS[option.name],
                default=None,
                help=text,
            )
            parser.addini(option.key, twin, default="")
        else:
            group.addoption(
                option.flag, metavar=option.metavar, dest=option.key, default=None, help=text
            )
            parser.addini(option.key, twin, default="")
    profiles = "The project's own profiles, one a line, such as mine: record=full timeout=600"
    parser.addini(
        PROFILES_KEY, f"{profiles} (see --trainsafe-profile)", type="linelist", default=[]
    )


def separate_sweep_words(config: pytest.Config, arguments: list[str]) -> None:
    """Removes the words that choose axis values (such as tp=2) from the paths in `arguments`.

    pytest has already parsed the command line once, to find plugins and conftest files, and took
    these words for paths; so the list of paths that it stored is corrected as well.
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
