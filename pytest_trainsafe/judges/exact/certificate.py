"""The certificate of a proof: a text file that says what was proved, of what, and how surely.

It is JSON with one field a line, so that a change of a proof shows in a review.  `digest` is a hash
of all other fields: it detects an edit that forgot it, not one that did not.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec
import xxhash

from pytest_trainsafe.core.untrusted import MALFORMED, read_file
from pytest_trainsafe.errors import TraceError

FORMAT = "pytest-trainsafe certificate 1"

_MAX_FILE = 2**27
_Text = Annotated[str, msgspec.Meta(max_length=10_000)]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """The Runs of one side.

    `point` is the Point, `ranks` their number, `decisions` how many comparisons and choices each
    rank took from the Run on real numbers, and `operators` how often all ranks met each operator.
    """

    point: _Text
    ranks: int
    decisions: tuple[int, ...]
    operators: dict[str, int]


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What was proved.

    `tensors` has a hash of the values of each logical tensor that both sides computed, in the Run
    of the first seed; `seeds` are those of the Runs, and `error` bounds the probability that a
    difference was missed.  `assumes` has a sentence on each assumption, and `not_covered` one on
    each thing that was not compared.  `semantics` names the module that states each operator that
    was met.
    """

    format: str = FORMAT
    program: _Text
    arguments: dict[str, _Text]
    candidate: Side
    reference: Side
    seeds: tuple[int, ...]
    hashed: int
    error: float
    tensors: dict[str, str]
    semantics: dict[str, _Text]
    assumes: tuple[_Text, ...]
    not_covered: tuple[_Text, ...]
    versions: dict[str, str]
    digest: str = ""


def sealed(certificate: Certificate) -> Certificate:
    """The certificate with the hash of its fields."""
    open_ = msgspec.structs.replace(certificate, digest="")
    return msgspec.structs.replace(open_, digest=_digest(open_))


def write(certificate: Certificate, folder: Path, name: str) -> Path:
    """Writes a certificate into a folder, under a name from which a file name is made."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    path = folder / (re.sub(r"[^\w.,=-]+", "_", name).strip("_")[-120:] + ".certificate.json")
    text = msgspec.json.format(msgspec.json.encode(sealed(certificate)), indent=1)
    path.write_bytes(text + b"\n")
    return path


def read(path: Path) -> Certificate:
    """The certificate at a path.  Raises TraceError if it is none, or if it was edited."""
    try:
        found = msgspec.json.decode(read_file(path, max_bytes=_MAX_FILE), type=Certificate)
    except (OSError, *MALFORMED) as error:
        raise TraceError(f"{path} is not a certificate: {error}") from error
    if found.format != FORMAT:
        raise TraceError(f"{path} has the format {found.format!r}; this version reads {FORMAT!r}")
    if sealed(found).digest != found.digest:
        raise TraceError(f"{path} was edited: its fields do not have the recorded hash")
    return found


def _digest(certificate: Certificate) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(certificate, order="deterministic"))
