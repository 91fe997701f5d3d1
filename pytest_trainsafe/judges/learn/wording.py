"""Says in words where a value of a call is: "the argument lr" for the place "arg.lr"."""

from __future__ import annotations

import re

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")

#: The places of arguments, results and attributes, and the properties of values, in a sentence.
_PLACES = re.compile(
    r"\b(?P<sizes>shape\[(?P<end>0|-1)\])"
    r"|(?<![\w.])(?:arg\.(?:args\.)?(?P<number>\d+)|arg\.(?P<argument>[A-Za-z_]\w*)"
    r"|result\.(?P<part>\d+)|(?P<result>result)(?= of )"
    r"|self\.(?P<attribute>[A-Za-z_]\w*))(?P<rest>(?:\.(?:[A-Za-z_]\w*|\d+))*)"
)
_DTYPE, _LENGTH = "dtype", "length"


def in_words(sentence: str) -> str:
    """A sentence on calls, with the places of values in words.

    >>> in_words("arg.training of torch.nn.functional.dropout is True")
    'the argument training of torch.nn.functional.dropout is True'
    >>> in_words("the shape[-1] of result.0 of f is at most arg.0.length")
    'the last size of the first part of the result of f is at most the length of the first argument'
    """
    return _PLACES.sub(_words, sentence)


def _words(found: re.Match[str]) -> str:
    if found["sizes"]:
        return "first size" if found["end"] == "0" else "last size"
    if found["number"]:
        words = f"the {_ordinal(found['number'])} argument"
    elif found["argument"]:
        words = f"the argument {found['argument']}"
    elif found["part"]:
        words = f"the {_ordinal(found['part'])} part of the result"
    elif found["result"]:
        words = "the result"
    else:
        words = f"{found['attribute']} of the object"
    for name in found["rest"].split(".")[1:]:
        words = f"{_part(name)} of {words}"
    return words


def _part(name: str) -> str:
    if name.isdigit():
        return f"the {_ordinal(name)} part"
    return f"the {name}" if name in (_DTYPE, _LENGTH) else name


def _ordinal(index: str) -> str:
    number = int(index)
    return _ORDINALS[number] if number < len(_ORDINALS) else f"{number + 1}th"
