"""The values of options: parsers of text, and checks of the values in a marker.

The first argument of a parser is the name of the text's source, for the message of a SettingError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from pytest_trainsafe.config.checks import require_known
from pytest_trainsafe.config.settings import NETWORKS, RECORDINGS, Recording
from pytest_trainsafe.core.axes import DTYPES, MAX_SECONDS
from pytest_trainsafe.core.usage import excerpt, listing, nearest, shown
from pytest_trainsafe.errors import SettingError

#: The name of a pack; its file is invariants/NAME.pack below the root directory.
PACK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)

#: The most ranks of a Point, and the most that train at once: a bound on typing errors.
MAX_RANKS = 100_000

#: The most shards of a run; a job matrix of GitHub Actions has at most 256 jobs.
MAX_SHARDS = 1_000


def parse_count(source: str, text: str) -> int:
    """An integer from 1 to MAX_RANKS."""
    if not re.fullmatch(r"0*[1-9][0-9]*", text):
        raise SettingError(f"{source} takes an integer >= 1, not {shown(text)}")
    if len(text) > 10 or int(text) > MAX_RANKS:
        raise SettingError(f"{source} takes an integer of at most {MAX_RANKS}, not {shown(text)}")
    return int(text)


def parse_seed(source: str, text: str) -> int:
    """A seed of 32 bits."""
    # torch takes more, but numpy's seeds end here.
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) >= 2**32:
        raise SettingError(f"{source} takes an integer from 0 to 2**32 - 1, not {shown(text)}")
    return int(text)


def parse_seconds(source: str, text: str) -> float:
    """A positive, finite number of seconds."""
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
    """Seconds, 0.0 for "off"."""
    if text == "off" or re.fullmatch(r"0{1,30}(\.0{0,30})?", text):
        return 0.0
    try:
        return parse_seconds(source, text)
    except SettingError:
        raise SettingError(
            f"{source} takes a number of seconds, or off, not {shown(text)}"
        ) from None


def parse_folder(source: str, text: str) -> str:
    """The path of a folder, which need not exist."""
    if any(len(os.fsencode(part)) > 255 for part in text.split(os.sep)) or len(text) > 3000:
        raise SettingError(f"{source} takes the path of a folder, and {shown(text)} is too long")
    if os.path.exists(text) and not os.path.isdir(text):
        raise SettingError(
            f"{source} takes the path of a folder, and {shown(text)} is not a folder"
        )
    return text


def parse_file(source: str, text: str) -> str:
    """The path of a file, which is read later."""
    if any(len(os.fsencode(part)) > 255 for part in text.split(os.sep)) or len(text) > 3000:
        raise SettingError(f"{source} takes the path of a file, and {shown(text)} is too long")
    return text


def parse_shard(source: str, text: str) -> tuple[int, int]:
    """The number of a shard, from 1, and the count of shards."""
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
            f"{source} is {shown(text)}, and {count} shards have the numbers 1 to {count}"
        )
    return number, count


def parse_replay(source: str, text: str) -> tuple[str, int | None]:
    """The absolute path of a trace, and the step after its last "@"; None without one."""
    path, at, step = text.rpartition("@")
    if not (at and re.fullmatch(r"[0-9]{1,15}", step)):
        path, step = text, ""
    for folder in (path, os.path.join(path, "trace")):
        if os.path.isfile(os.path.join(folder, "manifest.json")):
            return os.path.abspath(folder), int(step) if step else None
    raise SettingError(
        f"{source} takes the folder of a trace, such as traces/trainsafe/0001-dp2-float64-run or "
        f"the same with @3 for step 3, and {shown(path)} is not one: it has no manifest.json. "
        "Record traces with --trainsafe-keep-traces"
    )


def parse_size(source: str, text: str) -> int:
    """Bytes, of a number with a unit."""
    units = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([KMGT]B|)", text.upper())
    if found is None:
        raise SettingError(f"{source} takes a size such as 500MB or 2GB, not {shown(text)}")
    return int(float(found[1]) * units[found[2]])


def one_of(source: str, text: str, choices: tuple[str, ...]) -> str:
    """The word itself, which must be one of `choices`."""
    if text not in choices:
        raise SettingError(
            f"{source} takes one of {listing(choices)}, not {shown(text)}{nearest(text, choices)}"
        )
    return text


def choice(choices: tuple[str, ...]) -> Callable[[str, str], str]:
    """A parser that takes one of `choices`."""
    return lambda source, text: one_of(source, text, choices)


def parse_network(source: str, text: str) -> str:
    """One of NETWORKS; "private" only if the kernel allows it."""
    if one_of(source, text, NETWORKS) == "private":
        from pytest_trainsafe.launch.resources.namespace import why_not

        why = why_not()
        if why:
            raise SettingError(
                f"{source} is set to 'private', and this machine does not allow private networks "
                f"({why}); set it to 'host', or to 'auto', which then uses the machine's network"
            )
    return text


def parse_recording(source: str, text: str) -> Recording:
    """One of RECORDINGS."""
    return "sketch" if one_of(source, text, RECORDINGS) == "sketch" else "full"


def parse_list(source: str, text: str) -> tuple[str, ...]:
    """Words separated by commas, each once."""
    words = tuple(word.strip() for word in text.split(","))
    if "" in words:
        raise SettingError(
            f"{source} takes a comma-separated list, and {shown(text)} has an empty entry"
        )
    if len(set(words)) < len(words):
        raise SettingError(f"{source} lists an entry twice: {excerpt(text)}")
    return words


def parse_dtypes(source: str, text: str) -> tuple[str, ...]:
    """Dtypes, empty for "auto"."""
    if text == "auto":
        return ()
    return tuple(one_of(source, word, DTYPES) for word in parse_list(source, text))


def parse_kinds(source: str, text: str) -> tuple[str, ...]:
    """Kinds of tensors that are recorded."""
    from typing import get_args

    from pytest_trainsafe.core.tensor_id import Kind  # too slow to import for who does not ask

    words = parse_list(source, text)
    if "update" in words:
        raise SettingError(
            f"{source} takes kinds that are recorded, and update is not: an update is a parameter "
            "after a step minus before it. Use param and, where there are master copies, "
            "master_param"
        )
    recorded = tuple(kind for kind in get_args(Kind) if kind != "update")
    return tuple(one_of(source, word, recorded) for word in words)


def parse_checks(source: str, text: str) -> tuple[str, ...]:
    """Names of checks."""
    return require_known(parse_list(source, text), source)


def check_seed(given: object) -> int:
    """A seed in a marker."""
    if type(given) is not int or not 0 <= given < 2**32:
        raise SettingError(f"seed takes an integer from 0 to 2**32 - 1, not {shown(given)}")
    return given


def check_timeout(given: object) -> float:
    """Seconds in a marker."""
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not given > 0:
        raise SettingError(f"timeout takes a positive number of seconds, not {shown(given)}")
    if given > MAX_SECONDS:
        raise SettingError(f"timeout takes at most {MAX_SECONDS} seconds, not {shown(given)}")
    return float(given)


def check_accept(given: object) -> tuple[str, ...]:
    """Names of checks in a marker."""
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise SettingError(f"accept takes a list of names of checks, not {shown(given)}")
    return require_known(given)


def parse_packs(source: str, text: str) -> tuple[str, ...]:
    """Names of packs and paths of pack files."""
    return tuple(_pack(source, word) for word in parse_list(source, text))


def check_packs(given: object) -> tuple[str, ...]:
    """Names of packs and paths of pack files in a marker."""
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
    """The name of a pack to learn."""
    if not PACK_NAME.fullmatch(text):
        raise SettingError(
            f"{source} takes a name of at most 64 letters, digits, hyphens and underscores, not "
            f"{shown(text)}; if that is a path of tests, write {source.split('=')[0]}=NAME before "
            "it, or the option after it"
        )
    return text


def parse_switch(source: str, text: str) -> bool:
    """Whether something is on: "on" or "off"."""
    return choice(("on", "off"))(source, text) == "on"


#: The strengths of covering designs by their words.
_STRENGTHS = {"off": 0, "pairwise": 2, **{f"{n}-wise": n for n in range(2, 7)}}


def parse_cover(source: str, text: str) -> int:
    """The strength of a covering design, 0 for "off"."""
    return _STRENGTHS[one_of(source, text, tuple(_STRENGTHS))]


def cover_word(strength: int) -> str:
    """The word for a strength."""
    return next(word for word, each in _STRENGTHS.items() if each == strength)
