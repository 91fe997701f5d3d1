"""The certificate of a proof: a text file that says what was proved, of what, and how surely.

It is JSON with one field a line, so that a change of a proof shows in a review.  `digest` is a hash
of all other fields.  It detects an edit that forgot it; `rerun.py` detects any other edit, because
it computes every field again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import xxhash

from pytest_trainsafe.core.untrusted import MALFORMED, read_file, shown
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.trace.run_spec import RunSpec

FORMAT = "pytest-trainsafe certificate 4"

_MAX_FILE = 2**27
_Text = Annotated[str, msgspec.Meta(max_length=10_000)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Texts = Annotated[dict[_Text, _Text], msgspec.Meta(max_length=10**6)]
_List = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=10**5)]


class EditedError(TraceError):
    """The fields of a certificate do not have its hash."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """The Runs of one side.

    `spec` says what was run: the program, its arguments and its Point, without the path of the
    program's file and the timeout.  For each rank, `decisions` is how many comparisons and choices
    it took from the Run on real numbers, and `decided` a hash of those that are no fractions;
    `integers` is a hash of all integers and masks that met exact numbers: data, indices, routings.
    `operators` is how often all ranks met each operator.
    """

    spec: RunSpec
    decisions: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=10**5)]
    decided: _List
    integers: _List
    operators: Annotated[dict[_Text, _Count], msgspec.Meta(max_length=10**5)]


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What was proved.

    `sources` has a hash of each of the project's files that the program imports.  `tensors` has the
    shape of each logical tensor that both sides computed, and a hash of its values in the Run of
    the first seed; `layouts` says where the candidate's ranks hold it.  `seeds` are the samples of
    random residues of the Runs, `hashed` is how many values the Runs of one sample hashed,
    `multiplications` how many products, quotients, roots and functions they computed, and `error`
    bounds the probability that a difference was missed, which follows from both.  `accept` names
    the checks that may be inconclusive.  `assumes` has a sentence on each assumption, and
    `not_covered` one on each thing that was not compared.  `semantics` names the module that states
    each operator that was met.  `own_sizes` has the test's sizes if small ones stand for them.
    """

    format: str = FORMAT
    candidate: Side
    reference: Side
    sources: _Texts
    seeds: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=100)]
    hashed: _Count
    multiplications: _Count
    error: float
    accept: _List
    tensors: _Texts
    layouts: _Texts
    semantics: _Texts
    own_sizes: Annotated[dict[_Text, _Count], msgspec.Meta(max_length=1000)] = {}
    assumes: _List
    not_covered: _List
    versions: _Texts
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
    """The certificate at a path.  Raises TraceError if it is none, EditedError if it was edited."""
    try:
        content = read_file(path, max_bytes=_MAX_FILE)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        head = msgspec.json.decode(content)
        found_format = head.get("format") if isinstance(head, dict) else None
        if found_format != FORMAT:
            raise TraceError(
                f"{path} is not a certificate that this version reads: its format is "
                f"{shown(found_format, 60)!r}, not {FORMAT!r}; prove the test again"
            )
        found = msgspec.convert(head, type=Certificate)
    except (*MALFORMED, msgspec.ValidationError) as error:
        raise TraceError(f"{path} is not a certificate: {shown(error)}") from error
    if sealed(found).digest != found.digest:
        raise EditedError(
            f"{path} was edited: its fields do not have the recorded hash; prove the test again"
        )
    return found


def differences(certificate: Certificate, other: Certificate) -> list[str]:
    """The fields in which two certificates differ, each as "where: one, not the other".

    `versions` and `digest` are not compared.  An empty list says that both state the same.
    """
    return [
        f"{where}: the certificate has {shown(left, 80)}, the Runs have {shown(right, 80)}"
        for where, left, right in _different(
            "", msgspec.to_builtins(certificate), msgspec.to_builtins(other)
        )
        if where not in ("versions", "digest") and not where.startswith("versions.")
    ]


def _different(where: str, left: object, right: object) -> list[tuple[str, object, object]]:
    if left == right:
        return []
    if not isinstance(left, Mapping) or not isinstance(right, Mapping):
        return [(where, left, right)]
    found = []
    for key in (*left, *(key for key in right if key not in left)):
        inner = f"{where}.{key}" if where else str(key)
        found += _different(inner, left.get(key, "nothing"), right.get(key, "nothing"))
    return found


def _digest(certificate: Certificate) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(certificate, order="deterministic"))
