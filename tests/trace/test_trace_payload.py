"""Payload files are safetensors files, and are read back unchanged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import xxhash
from safetensors.torch import load_file

from pytest_trainsafe.trace.tensors.payload import (
    NAMES,
    Payload,
    PayloadError,
    PendingTensor,
    encode,
)
from pytest_trainsafe.trace.tensors.snapshot import as_bytes


def held(tensor: torch.Tensor) -> PendingTensor:
    data = as_bytes(tensor.contiguous()).numpy().tobytes()
    return PendingTensor(tensor.dtype, tuple(tensor.shape), data)


def entries(*made: PendingTensor) -> dict[str, PendingTensor]:
    """The entries of a payload, by their position."""
    return {str(place): each for place, each in enumerate(made)}


def content(tensors: dict[str, PendingTensor]) -> bytes:
    return b"".join(encode(tensors))


def digest(of: PendingTensor) -> str:
    return xxhash.xxh3_128_hexdigest(of.data)


def tensors() -> list[torch.Tensor]:
    """Tensors of every dtype, shuffled, with sizes that would misalign wider dtypes after them."""
    made = [
        (torch.randn(shape) * 3).to(torch.float32).to(dtype)
        for dtype in NAMES
        for shape in ((3,), (), (2, 5), (0, 4))
    ]
    random.Random(0).shuffle(made)
    return made


def test_the_safetensors_library_reads_a_payload(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = tensors()
    path = tmp_path / "payload.safetensors"
    path.write_bytes(content(entries(*map(held, made))))
    loaded = load_file(path)
    assert len(loaded) == len(made)
    for place, tensor in enumerate(made):
        found = loaded[str(place)]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(as_bytes(found), as_bytes(tensor))


def test_entries_are_loaded_with_their_dtype_shape_and_values(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = [*tensors(), torch.complex(torch.ones(3), torch.zeros(3))]
    path = tmp_path / "payload.safetensors"
    path.write_bytes(content(entries(*map(held, made))))
    payload = Payload(path)
    for place, tensor in enumerate(made):
        wanted = held(tensor)
        found = payload.load(str(place), wanted.dtype, wanted.shape, digest(wanted))
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(as_bytes(found), as_bytes(tensor))


def test_changing_a_loaded_tensor_does_not_change_the_payload_file(tmp_path: Path) -> None:
    path = tmp_path / "payload.safetensors"
    wanted = held(torch.arange(4.0))
    path.write_bytes(content(entries(wanted)))
    before = path.read_bytes()
    Payload(path).load("0", wanted.dtype, wanted.shape, digest(wanted)).zero_()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("keep", "words"),
    [(0, "header"), (5, "header"), (30, "header"), (-1, "its header says")],
)
def test_a_truncated_payload_is_refused(tmp_path: Path, keep: int, words: str) -> None:
    path = tmp_path / "payload.safetensors"
    path.write_bytes(content(entries(held(torch.arange(4.0))))[:keep])
    with pytest.raises(PayloadError, match=words):
        Payload(path)


def test_an_entry_with_another_key_hash_or_shape_than_its_event_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "payload.safetensors"
    wanted = held(torch.arange(4.0))
    path.write_bytes(content(entries(wanted)))
    payload = Payload(path)
    with pytest.raises(PayloadError, match="no entry 1"):
        payload.load("1", wanted.dtype, wanted.shape, digest(wanted))
    with pytest.raises(PayloadError, match="recorded hash"):
        payload.load("0", wanted.dtype, wanted.shape, digest(held(torch.zeros(4))))
    with pytest.raises(PayloadError, match=r"of shape \[5\]"):
        payload.load("0", wanted.dtype, (5,), digest(wanted))
