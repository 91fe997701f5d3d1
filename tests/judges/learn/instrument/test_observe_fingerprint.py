"""A fingerprint lists the attributes that may have changed since its last call."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from pytest_trainsafe.judges.learn.instrument.state.fingerprint import Fingerprint


def test_the_first_call_lists_all_attributes_and_the_second_none() -> None:
    held = {0: torch.ones(2), 1: 0.5, 2: None, 3: "text"}
    fingerprint = _of(held)

    assert fingerprint.changed() == {0, 1, 2, 3}
    assert fingerprint.changed() == set()


@pytest.mark.parametrize("now", [0.25, None, torch.zeros(2)])
def test_another_object_in_an_attribute_is_a_change(now: object) -> None:
    held: dict[int, object] = {0: 0.5, 1: torch.ones(2)}
    fingerprint = _of(held)
    fingerprint.changed()

    held[0] = now

    assert fingerprint.changed() == {0}
    assert fingerprint.changed() == set()


def test_an_in_place_write_and_new_tensor_data_are_changes() -> None:
    held = {0: torch.ones(2), 1: torch.ones(2), 2: torch.ones(2)}
    fingerprint = _of(held)
    fingerprint.changed()

    held[0].add_(1)
    held[1].data = torch.zeros(2)

    assert fingerprint.changed() == {0, 1}
    assert fingerprint.changed() == set()


def test_only_the_attribute_that_becomes_a_tensor_is_listed() -> None:
    held: dict[int, object] = {0: None, 1: torch.ones(2)}
    fingerprint = _of(held)
    fingerprint.changed()

    held[0] = torch.ones(3)

    assert fingerprint.changed() == {0}


def test_lists_and_inference_tensors_are_always_listed() -> None:
    with torch.inference_mode():
        without_version = torch.ones(2)
    fingerprint = _of({0: [1, 2], 1: without_version, 2: torch.ones(2)})
    fingerprint.changed()

    assert fingerprint.changed() == {0, 1}


def _of(held: Mapping[int, object]) -> Fingerprint:
    fingerprint = Fingerprint()
    fingerprint.reads = [lambda index=index: held[index] for index in held]  # type: ignore[misc]
    return fingerprint
