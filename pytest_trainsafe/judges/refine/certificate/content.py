"""What a certificate says, and the file that holds it: JSON that is read strictly."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED, BadFileError, read_file, shown
from pytest_trainsafe.judges.refine.errors import CertificateError

if TYPE_CHECKING:
    import torch

FORMAT = 2
MAX_BYTES = 64 << 20


class GraphPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A graph by its name and the digest of its content."""

    name: str
    digest: str


class Integers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The integers of an input that the proof rests on: drawn from 0 up to a bound.

    The first of the certificate's seeds uses `seed`, the second the next one, and so on.
    """

    below: int
    seed: int


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was proved of a sequential graph and the graphs of all ranks.

    `sizes` has the small sizes that replace those of each graph's nodes, the sequential one's
    first: those of a node's shape, then those of its arguments, without ones and zeros.
    `inputs` and `outputs` are the relations that were given and those that results have;
    `relations` has all that were found.
    If sizes are symbolic, `symbols` has their values, `assume` what was assumed of them,
    `rank_symbols` the sizes of ranks, and `others` the certificates for other values of them.
    `engines` says of each tensor that a second engine was asked about whether "both" prove it, or
    the field alone and why.
    `missing` are tensors without a relation; in a `partial` one, what depends on
    inputs without a relation is neither.  `operators` says for each operator whose semantics
    were used, `assumed` what is not proved, and `error` is the largest probability that one of the
    relations is false.  `digest` is that of everything else.
    """

    format: int
    sequential: GraphPart
    ranks: tuple[GraphPart, ...]
    symbols: dict[str, int] = msgspec.field(default_factory=dict)
    assume: list[str] = msgspec.field(default_factory=list)
    rank_symbols: dict[str, str] = msgspec.field(default_factory=dict)
    engines: dict[str, str] = msgspec.field(default_factory=dict)
    others: list[Certificate] = msgspec.field(default_factory=list)
    mesh: dict[str, int]
    groups: dict[str, list[str | list[int]]]
    sizes: list[dict[str, list[int]]]
    inputs: dict[str, str]
    constants: dict[str, float]
    integers: dict[str, Integers]
    outputs: dict[str, str]
    relations: dict[str, list[str]]
    missing: list[str]
    partial: bool
    seeds: list[int]
    operators: dict[str, str]
    assumed: list[str]
    error: float
    digest: str = ""

    def whole(self) -> Certificate:
        """This certificate with the digest of its content."""
        return msgspec.structs.replace(self, digest=_digest(self))

    def text(self) -> str:
        """The content of its file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"

    def translate(self, ranks: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The sequential results that the tensors of all ranks, by name, make (`translate.py`)."""
        from pytest_trainsafe.judges.refine.certificate.translate import translate

        return translate(self.outputs, self.mesh, bool(self.sizes), ranks)

    def save(self, path: Path | str) -> None:
        Path(path).write_text(self.text())


def read_certificate(path: Path | str) -> Certificate:
    """The certificate in a file.  Raises CertificateError if it is damaged."""
    try:
        return parse_certificate(read_file(Path(path), max_bytes=MAX_BYTES))
    except (BadFileError, OSError) as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}") from None


def parse_certificate(text: bytes | str) -> Certificate:
    """The certificate that a text holds.  Raises CertificateError if it is damaged."""
    try:
        found = msgspec.json.decode(text, type=Certificate)
    except (*MALFORMED, msgspec.ValidationError) as error:
        raise CertificateError(f"this is no certificate: {shown(str(error))}") from None
    if found.format != FORMAT:
        raise CertificateError(f"the certificate has the format {found.format}, not {FORMAT}")
    if found.digest != _digest(found):
        raise CertificateError("the certificate's content does not have its digest: it was edited")
    return found


def _digest(certificate: Certificate) -> str:
    content = msgspec.structs.replace(certificate, digest="")
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
