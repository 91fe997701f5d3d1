"""The values of options: parsers of text, and checks of the values in a marker.

A parser takes the name of the text's source, for messages, and the text.  Parsers and checks return
the value, and raise SettingError for an invalid one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from pytest_trainsafe.config.checks import require_known
from pytest_trainsafe.config.settings import NETWORKS, RECORDINGS, Recording
from pytest_trainsafe.core.axes import MAX_SECONDS
from pytest_trainsafe.core.usage import excerpt, listing, nearest, shown
from pytest_trainsafe.errors import SettingError

#: The name of a pack; its file is invariants/NAME.pack below the root directory.
PACK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)

#: Maximum number of ranks of a Point, and of ranks that train at once; it catches typing errors.
MAX_RANKS = 100_000

#: Maximum number of shards of a run; a job matrix of GitHub Actions has at most 256 jobs.
MAX_SHARDS = 1_000


def parse_count(source: str, text: str) -> int:
    """Parses an integer from 1 to MAX_RANKS."""
    if not re.fullmatch(r"0*[1-9][0-9]*", text):
        raise SettingError(f"{source} takes an integer >= 1, not {shown(text)}")
    if len(text) > 10 or int(text) > MAX_RANKS:
        raise SettingError(f"{source} takes an integer of at most {MAX_RANKS}, not {shown(text)}")
    return int(text)


def parse_rank(source: str, text: str) -> int:
    """Parses the number of a rank, from 0 to MAX_RANKS."""
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > MAX_RANKS:
        raise SettingError(f"{source} takes the number of a rank, such as 1, not {shown(text)}")
    return int(text)


def parse_seed(source: str, text: str) -> int:
    """Parses a seed of 32 bits."""
    # torch takes more, but numpy's seeds end here.
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) >= 2**32:
        raise SettingError(f"{source} takes an integer from 0 to 2**32 - 1, not {shown(text)}")
    return int(text)


def parse_seconds(source: str, text: str) -> float:
    """Parses a positive number of seconds, at most MAX_SECONDS."""
    # float() by itself takes "nan", "1_0" and the digits of every script.
    if not re.fullmatch(r"[0-9.]{1,30}(e[+-]?[0-9]{1,3})?", text.lower()):
        raise SettingError(f"{source} takes a positive number of seconds, not {shown(text)}")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0  # two points, or no digit
    if not seconds > 0:
        raise SettingError(f"{source} takes a positive number of seconds, not {shown(text)}")
    if seconds > MAX_SECONDS:
        raise SettingError(f"{source} takes at most {MAX_SECONDS} seconds, not {shown(text)}")
    return seconds


def parse_localize(source: str, text: str) -> float:
    """Parses a number of seconds; "off" gives 0.0."""
    if text == "off" or re.fullmatch(r"0{1,30}(\.0{0,30})?", text):
        return 0.0
    try:
        return parse_seconds(source, text)
    except SettingError:
        raise SettingError(
            f"{source} takes a number of seconds, or off, not {shown(text)}"
        ) from None


def parse_folder(source: str, text: str) -> str:
    """Parses the path of a folder, which need not exist."""
    if any(len(os.fsencode(part)) > 255 for part in text.split(os.sep)) or len(text) > 3000:
        raise SettingError(f"{source} takes the path of a folder, and {shown(text)} is too long")
    if os.path.exists(text) and not os.path.isdir(text):
        raise SettingError(
            f"{source} takes the path of a folder, and {shown(text)} is not a folder"
        )
    return text


def parse_file(source: str, text: str) -> str:
    """Parses the path of a file, which need not exist."""
    if any(len(os.fsencode(part)) > 255 for part in text.split(os.sep)) or len(text) > 3000:
        raise SettingError(f"{source} takes the path of a file, and {shown(text)} is too long")
    return text


def parse_program(source: str, text: str) -> str:
    """Parses the name of a program, which is looked up later."""
    if not text or len(text) > 3000:
        raise SettingError(
            f"{source} takes package.module:function or the path of a script, not {shown(text)}"
        )
    return text


def parse_shard(source: str, text: str) -> tuple[int, int]:
    """Parses "I/N": the number of a shard, counted from 1, and the count of shards."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if found is None:
        raise SettingError(
            f"{source} takes the number of a shard and the count of shards, such as 1/4, not "
            f"{shown(text)}"
        )
    number, count = int(found[1]), int(found[2])
    if not 1 <= count <= MAX_SHARDS:
        raise SettingError(f"{source} takes 1 to {MAX_SHARDS} shards, not {shown(text)}")
    if not 1 <= number <= count:
        raise SettingError(
            f"{source} is {shown(text)}, but {count} shards are numbered from 1 to {count}"
        )
    return number, count


def parse_replay(source: str, text: str) -> tuple[str, int | None]:
    """Parses "TRACE@STEP": the absolute path of a trace, and the step or None."""
    whole = _trace_at(text)  # first, because a folder may have an @ in its name
    if whole is not None:
        return whole, None
    path, at, step = text.rpartition("@")
    found = _trace_at(path) if at else None
    if found is None:
        numbered = at and re.fullmatch(r"-?[0-9]{1,15}", step)
        raise SettingError(
            f"{source} takes the folder of a trace, such as traces/trainsafe/0001-dp2-float64-run, "
            f"or the same with @3 for step 3, but {shown(path if numbered else text)} is not a "
            "trace: it has no manifest.json. Record traces with --trainsafe-keep-traces"
        )
    if not re.fullmatch(r"[0-9]{1,15}", step):
        raise SettingError(
            f"{source} takes the folder of a trace with @ and the number of a step, counted from "
            f"0, such as {path}@3, not {shown(step)} as the step. Without @ and a step, the step "
            "that failed is replayed"
        )
    return found, int(step)


def _trace_at(path: str) -> str | None:
    """The absolute path of a folder if it, or the folder "trace" in it, is a trace; else None."""
    folders = (path, os.path.join(path, "trace")) if path else ()
    found = any(os.path.isfile(os.path.join(folder, "manifest.json")) for folder in folders)
    return os.path.abspath(path) if found else None


def parse_size(source: str, text: str) -> int:
    """Parses a size such as 500MB or 2GB; returns the number of bytes."""
    units = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([KMGT]B|)", text.upper())
    if found is None:
        raise SettingError(f"{source} takes a size such as 500MB or 2GB, not {shown(text)}")
    return int(float(found[1]) * units[found[2]])


def one_of(source: str, text: str, choices: tuple[str, ...]) -> str:
    """Returns the word unchanged; raises SettingError if it is not one of `choices`."""
    if text not in choices:
        raise SettingError(
            f"{source} takes one of {listing(choices)}, not {shown(text)}{nearest(text, choices)}"
        )
    return text


def choice(choices: tuple[str, ...]) -> Callable[[str, str], str]:
    """Returns a parser that takes one of `choices`."""
    return lambda source, text: one_of(source, text, choices)


def parse_network(source: str, text: str) -> str:
    """Parses one of NETWORKS; rejects "private" if the machine does not allow it."""
    if one_of(source, text, NETWORKS) == "private":
        from pytest_trainsafe.launch.resources.namespace import why_not

        why = why_not()
        if why:
            raise SettingError(
                f"{source} is set to 'private', but this machine does not allow private networks "
                f"({why}); set it to 'host', or to 'auto', which then uses the machine's network"
            )
    return text


def parse_recording(source: str, text: str) -> Recording:
    """Parses one of RECORDINGS."""
    return "sketch" if one_of(source, text, RECORDINGS) == "sketch" else "full"


def parse_list(source: str, text: str) -> tuple[str, ...]:
    """Parses words separated by commas, which must be different."""
    words = tuple(word.strip() for word in text.split(","))
    if "" in words:
        raise SettingError(
            f"{source} takes a comma-separated list, and {shown(text)} has an empty entry"
        )
    if len(set(words)) < len(words):
        raise SettingError(f"{source} lists an entry twice: {excerpt(text)}")
    return words


def parse_dtypes(source: str, text: str) -> tuple[str, ...]:
    """Parses dtypes separated by commas; "auto" gives an empty tuple."""
    if text == "auto":
        return ()
    from pytest_trainsafe.core.rungs.table import rung_choices

    return tuple(one_of(source, word, rung_choices()) for word in parse_list(source, text))


def parse_kinds(source: str, text: str) -> tuple[str, ...]:
    """Parses kinds of tensors that are recorded, separated by commas."""
    from typing import get_args

    from pytest_trainsafe.core.tensor_id import Kind  # slow to import, and rarely needed

    words = parse_list(source, text)
    if "update" in words:
        raise SettingError(
            f"{source} takes kinds of recorded tensors. The kind update is not recorded, but "
            "computed later: the value of a parameter after a step minus its value before. Use "
            "param and, if there are master copies, master_param"
        )
    recorded = tuple(kind for kind in get_args(Kind) if kind != "update")
    return tuple(one_of(source, word, recorded) for word in words)


def parse_checks(source: str, text: str) -> tuple[str, ...]:
    """Parses names of checks, separated by commas."""
    return require_known(parse_list(source, text), source)


def check_seed(given: object) -> int:
    """Checks a seed in a marker."""
    if type(given) is not int or not 0 <= given < 2**32:
        raise SettingError(f"seed takes an integer from 0 to 2**32 - 1, not {shown(given)}")
    return given


def check_timeout(given: object) -> float:
    """Checks a number of seconds in a marker."""
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not given > 0:
        raise SettingError(f"timeout takes a positive number of seconds, not {shown(given)}")
    if given > MAX_SECONDS:
        raise SettingError(f"timeout takes at most {MAX_SECONDS} seconds, not {shown(given)}")
    return float(given)


def check_accept(given: object) -> tuple[str, ...]:
    """Checks a list of names of checks in a marker."""
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise SettingError(f"accept takes a list of names of checks, not {shown(given)}")
    return require_known(given)


def parse_packs(source: str, text: str) -> tuple[str, ...]:
    """Parses names of packs and paths of pack files, separated by commas."""
    return tuple(_pack(source, word) for word in parse_list(source, text))


def check_packs(given: object) -> tuple[str, ...]:
    """Checks a list of names of packs and paths of pack files in a marker."""
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise SettingError(
            f"packs takes a list of names of packs or paths of .pack files, not {shown(given)}"
        )
    return tuple(dict.fromkeys(_pack("packs", name) for name in given))


def _pack(source: str, word: str) -> str:
    if PACK_NAME.fullmatch(word) or (word.endswith(".pack") and "\0" not in word):
        return word
    raise SettingError(
        f"{source} takes names of packs, such as ours, and paths of .pack files, not {shown(word)}"
    )


def parse_pack_name(source: str, text: str) -> str:
    """Parses the name of a pack to learn."""
    if not PACK_NAME.fullmatch(text):
        raise SettingError(
            f"{source} takes a name of at most 64 letters, digits, hyphens and underscores, not "
            f"{shown(text)}; if this is a path of tests, write {source.split('=')[0]}=NAME before "
            "the path, or put the option after the path"
        )
    return text


def parse_switch(source: str, text: str) -> bool:
    """Parses "on" or "off"; returns whether it is on."""
    return choice(("on", "off"))(source, text) == "on"


#: The strength of a covering design, by its word.
_STRENGTHS = {"off": 0, "pairwise": 2, **{f"{n}-wise": n for n in range(2, 7)}}


def parse_cover(source: str, text: str) -> int:
    """Parses the strength of a covering design; "off" gives 0."""
    return _STRENGTHS[one_of(source, text, tuple(_STRENGTHS))]


def cover_word(strength: int) -> str:
    """The word for the strength of a covering design, such as "pairwise" or "off"."""
    return next(word for word, each in _STRENGTHS.items() if each == strength)
