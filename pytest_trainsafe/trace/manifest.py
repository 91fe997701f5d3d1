"""Reads the manifest of a trace, and checks what it declares.  Called by the reader."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import rung_names
from pytest_trainsafe.core.untrusted import MALFORMED, read_file, shown
from pytest_trainsafe.errors import SweepError, TraceError
from pytest_trainsafe.trace.schema import (
    MAX_MANIFEST,
    MAX_RANKS,
    SCHEMA_VERSION,
    Manifest,
    manifest_hash,
)

FORMAT = "pytest-trainsafe trace"


def read_manifest(path: Path) -> tuple[Manifest, str]:
    """The manifest and its hash; raises TraceError unless the folder is a trace of this schema."""
    file = path / "manifest.json"
    try:
        data = read_file(file, below=path, max_bytes=MAX_MANIFEST)
    except OSError as error:
        raise TraceError(
            f"{path} is not a trace: {file.name} cannot be read ({error.strerror}). "
            "A trace is the directory that a recorded run wrote."
        ) from error
    try:
        head = msgspec.json.decode(data)
    except MALFORMED as error:
        raise TraceError(f"{file} is not JSON ({shown(error)}). Record the run again.") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise TraceError(
            f"{path} is not a trace: {file.name} does not say `format: {FORMAT}`. "
            "It belongs to something else; choose another directory."
        )
    schema = head.get("schema")
    if schema != SCHEMA_VERSION:
        found = shown(schema, 40) if isinstance(schema, int | str) else "(not a number)"
        raise TraceError(
            f"{file} has schema version {found}, and this pytest-trainsafe reads "
            f"version {SCHEMA_VERSION}. Record the run again, or use the release that wrote it."
        )
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except MALFORMED as error:
        raise TraceError(f"{file} is damaged: {shown(error)}. Record the run again.") from None
    if manifest.dtype not in rung_names():
        name = shown(repr(manifest.dtype), 40)
        why = f"there is no dtype {name}, and no hook pytest_trainsafe_rungs adds it"
        raise TraceError(f"{file} is damaged: {why}. Record the run again.")
    return manifest, manifest_hash(data)


def point_of(path: Path, manifest: Manifest) -> Point:
    """The Point that a manifest describes: the value of each axis, such as dp=2 tp=4.

    Raises TraceError if the manifest's mesh or the size of an axis is invalid, or if the Point and
    the manifest have different numbers of ranks.
    """
    try:
        mesh = Mesh.of(manifest.spec.mesh)
    except SweepError as error:
        raise TraceError(
            f"{path / 'manifest.json'} is damaged: {shown(error)}. Record the run again."
        ) from error
    axes = dict(manifest.spec.axes)
    for axis in (*mesh.axes, *mesh.overlaps):
        size = axes.get(axis, 1)
        if type(size) is not int or not 1 <= size <= MAX_RANKS:
            raise TraceError(
                f"{path / 'manifest.json'} is damaged: the size of {axis} is "
                f"{shown(repr(size), 40)}, not a number from 1 to {MAX_RANKS}. "
                "Record the run again."
            )
    point = manifest.point
    if point.world_size != manifest.world_size:
        raise TraceError(
            f"{path / 'manifest.json'} contradicts itself: {shown(point)} has "
            f"{point.world_size} ranks, but world_size is {manifest.world_size}. "
            "Record the run again."
        )
    return point
