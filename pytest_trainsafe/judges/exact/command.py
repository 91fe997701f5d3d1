"""`python -m pytest_trainsafe certificate`: runs a certificate of a proof again."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.judges.exact.certificate import EditedError, read
from pytest_trainsafe.judges.exact.rerun import RefusedError, rerun

HOLDS, REFUSED, UNKNOWN = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the verdict and returns the exit status.

    0: the certificate holds.  1: its Runs give something else, or it was edited.  2: it cannot be
    read or run.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    sys.path[:0] = [str(folder) for folder in given.path]
    settings = Settings(
        max_world_size=given.max_world_size, timeout=given.timeout, launcher=given.launcher
    )
    try:
        certificate = read(given.file)
        with tempfile.TemporaryDirectory(prefix="trainsafe-certificate-") as temporary:
            found = rerun(certificate, Path(temporary), settings, given.types, given.seeds)
    except (RefusedError, EditedError) as error:
        print(f"{parser.prog}: {given.file} is refused: {error}", file=sys.stderr)
        return REFUSED
    except (TrainsafeError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return UNKNOWN
    print(
        f"{given.file} holds: {found.tensors} tensors of {certificate.candidate.spec.program} are "
        f"equal with {len(found.samples)} fresh seeds; a difference is missed with a probability "
        f"of at most {found.error:.0e}"
    )
    for each in found.types:
        print(f"{each.id.kind} {each.id.path}: {each}")
    return HOLDS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_trainsafe certificate",
        description="Run the program of a certificate again, on fresh random residues. "
        "The program is imported and executed, so use certificates of your own programs only.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="The certificate")
    parser.add_argument(
        "--path",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="A folder from which the program is imported, beside the working folder",
    )
    parser.add_argument(
        "--max-world-size",
        type=int,
        default=Settings().max_world_size,
        metavar="N",
        help="Refuse a certificate of more ranks (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=Settings().timeout,
        metavar="SECONDS",
        help="The time limit of each Run (default: %(default)s)",
    )
    parser.add_argument(
        "--types",
        action="store_true",
        help="Print how the ranks hold each tensor, as observed: along each axis replicated, a "
        "partial sum, or sharded in a dimension",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="Prove again on at least N fresh samples of random residues (default: %(default)s)",
    )
    parser.add_argument("--launcher", default="auto", help="What starts the ranks")
    return parser
