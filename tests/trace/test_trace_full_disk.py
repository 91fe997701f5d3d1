"""If a trace cannot be written, the error names the file and the reason."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import NoteEvent
from pytest_trainsafe.trace.writer import RankWriter, TraceWriteError, manifest_of, write_manifest

WEIGHT = TensorId(0, None, "param", "layer", "weight")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of files that this process writes to `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_reported_with_the_file_and_again_when_the_writer_is_closed(
    tmp_path: Path,
) -> None:
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0/events.jsonl").symlink_to("/dev/full")
    writer = RankWriter(tmp_path, 0)
    writer.add(NoteEvent("dropout", "none"))
    with pytest.raises(TraceWriteError) as caught:
        writer.flush()
    message = str(caught.value)
    assert "no space left on device" in message
    assert f"{tmp_path}/rank0/events.jsonl (47 bytes)" in message
    assert "--basetemp" in message
    with pytest.raises(TraceWriteError, match="no space left"):
        writer.close()


def test_a_payload_that_does_not_fit_on_the_disk_leaves_no_file_and_no_event(
    tmp_path: Path,
) -> None:
    write_manifest(
        tmp_path,
        manifest_of(RunSpec(program="p", dtype="float32"), "cpu"),
    )
    writer = RankWriter(tmp_path, 0)
    writer.add(NoteEvent("dropout", "none"))
    writer.flush()
    writer.add_tensor(WEIGHT, torch.ones(4096))
    with largest_file(4096), pytest.raises(TraceWriteError, match="payload-00000") as caught:
        writer.flush()
    assert "File too large" in str(caught.value)
    assert [path.name for path in (tmp_path / "rank0").iterdir()] == ["events.jsonl"]
    trace = Trace.open(tmp_path, allow_incomplete=True)
    assert trace.ranks[0].note("dropout") == ["none"]
    assert not trace.complete
    assert trace.ranks[0].tensors == {}


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank0").write_text("a file")
    with pytest.raises(TraceWriteError, match="rank0"):
        RankWriter(tmp_path, 0)


def test_a_folder_that_contains_a_trace_is_refused(tmp_path: Path) -> None:
    RankWriter(tmp_path, 0).close()
    with pytest.raises(TraceWriteError, match="already holds a trace"):
        RankWriter(tmp_path, 0)
