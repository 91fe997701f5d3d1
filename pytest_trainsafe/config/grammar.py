"""The grammar of `--trainsafe-sweep`: axis words such as `tp=1,2`, any number after the option.

pytest's parser accepts only one word after an option.  `gather` rewrites the command line before
pytest parses it for the last time, so that every axis word has an option of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from pytest_trainsafe.core.axes import AXES, MAX_CHARACTERS, MAX_POINTS, check_values
from pytest_trainsafe.core.usage import excerpt, shown
from pytest_trainsafe.errors import SweepError

OPTION = "--trainsafe-sweep"

#: Pairs of an axis name and its values as written, in the order in which they were given.
SweepWords = tuple[tuple[str, tuple[str, ...]], ...]

_WORD = re.compile(r"[a-z_][a-z0-9_]*=")


def gather(arguments: list[str], is_path: Callable[[str], bool]) -> list[str]:
    """Rewrites `arguments` in place, so that every axis word has its own `--trainsafe-sweep`.

    Axis words, such as "tp=1,2", are those between a `--trainsafe-sweep` and the next option, where
    they may be mixed with paths; after another option, `a=b` may be that option's value.  A word
    that is also an existing path stays a path.  Returns the axis words that did not follow the
    option directly: pytest may have taken them for paths.
    """
    rewritten: list[str] = []
    taken: list[str] = []
    after_sweep = value_due = False
    for position, argument in enumerate(arguments):
        if argument == "--":
            rewritten += arguments[position:]
            break
        if value_due:
            value_due = False
            rewritten.append(f"{OPTION}={argument}")
        elif argument == OPTION:
            after_sweep = True
            value_due = position + 1 < len(arguments)
            if not value_due:
                rewritten.append(argument)  # pytest reports the missing value
        elif argument.startswith("-"):
            after_sweep = argument.startswith(f"{OPTION}=")
            rewritten.append(argument)
        elif after_sweep and _WORD.match(argument) and not is_path(argument):
            taken.append(argument)
            rewritten.append(f"{OPTION}={argument}")
        else:
            rewritten.append(argument)
    arguments[:] = rewritten
    return taken


def split_quoted(words: Iterable[str]) -> list[str]:
    """The axis words, where several may be in one, as a shell passes "tp=1 cp=2" in quotes.

    A word is divided only if each of its parts is an axis word: a value may have a space.
    """
    divided: list[str] = []
    for word in words:
        parts = word.split()
        divided += parts if parts and all(map(_WORD.match, parts)) else [word]
    return divided


def parse_words(words: Iterable[str], source: str = OPTION) -> SweepWords:
    """Parses words such as "tp=1,2".  Each test checks the values of axes that are not built in.

    Raises SweepError, which names `source`, for a word that is not an axis word, for an axis that
    is given twice, and for values that the axis does not take.
    """
    table: dict[str, tuple[str, ...]] = {}
    for word in words:
        if not _WORD.match(word) or word.index("=") > MAX_CHARACTERS:
            raise SweepError(
                f"{source} takes words such as tp=1,2 or sp=false,true, not {shown(word)}"
            )
        axis, _, text = word.partition("=")
        if axis in table:
            first = f"{axis}={','.join(table[axis])}"
            raise SweepError(
                f"{source} names axis {shown(axis)} twice ({excerpt(first)} and {excerpt(word)}); "
                f"give all its values in one word"
            )
        if text.count(",") >= MAX_POINTS:
            raise SweepError(
                f"{source}: axis {shown(axis)} has {text.count(',') + 1} values; a test has at "
                f"most {MAX_POINTS} points, so give fewer"
            )
        values = tuple(text.split(","))
        if "" in values:
            name = excerpt(axis)
            raise SweepError(
                f"{source}: {shown(word)} has an empty value; "
                f"write {name}=VALUE or {name}=VALUE,VALUE"
            )
        if axis in AXES:
            known = AXES[axis]
            try:
                check_values(known, [known.parse(value) for value in values])
            except SweepError as error:
                raise SweepError(f"{source} {excerpt(word)}: {error}") from None
        elif odd := [v for v in values if not v.isprintable() or len(v) > MAX_CHARACTERS]:
            raise SweepError(
                f"{source} {excerpt(word)}: an axis takes numbers and words of at most "
                f"{MAX_CHARACTERS} printable characters, not {shown(odd[0])}"
            )
        table[axis] = values
    return tuple(table.items())
