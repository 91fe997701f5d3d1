"""Finds the GPUs that the caller may use, and compares names that may denote the same GPU.

Called by `leases`, which gives ranks entries of the caller's CUDA_VISIBLE_DEVICES as they were
written: indices, UUIDs of GPUs ("GPU-8932f937-...") or of MIG instances ("MIG-...").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible(environ: Mapping[str, str], count: Callable[[], int]) -> tuple[str, ...]:
    """The GPUs that the caller may use, as entries for CUDA_VISIBLE_DEVICES.

    `count()` is the number of GPUs that CUDA finds.  If `environ` lacks CUDA_VISIBLE_DEVICES, the
    entries are the indices below `count()`.  Otherwise the list ends where CUDA ends it: before the
    first entry that is invalid or has another form (index, GPU or MIG) than the first.  It is empty
    if a GPU is listed twice, and has at most `count()` entries.
    """
    written = environ.get(VARIABLE)
    if written is None:
        return tuple(str(index) for index in range(count()))
    words = [word.strip() for word in written.split(",")]
    form = _form(words[0])
    taken: list[str] = []
    for word in words:
        if not _form(word) or _form(word) != form:
            break
        taken.append(word)
    names = [_number(word) if form == "index" else word for word in taken]
    if len(set(names)) < len(names):
        return ()
    return tuple(taken[: count()])


def same(one: str, other: str) -> bool:
    """Whether two entries of CUDA_VISIBLE_DEVICES may name the same GPU.

    True for entries of different forms, such as an index and a UUID: only the driver can match
    them, and waiting for a free GPU costs less than sharing one.  A UUID may be abbreviated to a
    unique prefix.
    """
    form = _form(one)
    if form != _form(other):
        return True
    if form == "index":
        return _number(one) == _number(other)
    return one.startswith(other) or other.startswith(one)


def _form(word: str) -> str:
    if re.match(r"\+?\d", word):
        return "index"
    found = re.match(r"(GPU|MIG)-.", word)
    return found[1] if found else ""


def _number(word: str) -> str:
    """The index as CUDA parses it, from the leading digits: "1gpu" is 1."""
    found = re.match(r"\+?0*(\d+)", word)
    assert found is not None, word
    return found[1]
