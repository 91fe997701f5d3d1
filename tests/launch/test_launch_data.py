"""Only data crosses between the test and its ranks, and every bit of it arrives."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy
import pytest
import torch

from pytest_trainsafe.launch.data import NotDataError, decode, encode

PLAIN: list[object] = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    -(10**40),
    0.1,
    float("inf"),
    "",
    "ä",
    b"\x00\xff",
    [1, [2, (3, "4")]],
    (1, (2,), []),
    {"a": {1: (2, 3)}, (4, 5): None},
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_arrive_equal_and_of_the_same_type(value: object) -> None:
    arrived = decode(encode(value))
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    ],
    ids=str,
)
def test_every_bit_of_a_tensor_arrives(dtype: torch.dtype) -> None:
    # every second of all byte patterns: NaNs with payloads and denormals among them
    tensor = torch.arange(256, dtype=torch.uint8)
    tensor = (tensor % 2).bool() if dtype is torch.bool else tensor.view(dtype)
    strided = torch.stack([tensor, tensor]).t()[::2]
    arrived = decode(encode({"here": [strided]}))["here"][0]
    assert arrived.dtype == dtype
    assert arrived.shape == strided.shape
    assert torch.equal(arrived.view(torch.uint8), strided.contiguous().view(torch.uint8))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)], ids=str)
def test_scalar_and_empty_tensors_keep_their_shape(shape: tuple[int, ...]) -> None:
    assert decode(encode(torch.zeros(shape))).shape == shape


def test_a_parameter_arrives_as_a_plain_tensor() -> None:
    arrived = decode(encode(torch.nn.Parameter(torch.ones(2))))
    assert type(arrived) is torch.Tensor
    assert not arrived.requires_grad


def test_numpy_arrays_and_numbers_arrive() -> None:
    array = numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)).astype(">f4")
    arrived, number = decode(encode((array, numpy.float64(0.1))))
    numpy.testing.assert_array_equal(arrived, array)
    assert type(number) is numpy.float64
    assert number == 0.1


def test_a_struct_arrives_as_a_dict() -> None:
    class Settings(msgspec.Struct):
        layers: int
        rates: tuple[float, ...]

    assert decode(encode(Settings(2, (0.1,)))) == {"layers": 2, "rates": (0.1,)}


REFUSED: list[tuple[Any, str]] = [
    (object(), "what[0]['key'] is a object"),
    (len, "what[0]['key'] is a builtin_function_or_method"),
    ({1, 2}, "what[0]['key'] is a set"),
    (torch.float32, "what[0]['key'] is a torch.dtype"),
    (torch.eye(2).to_sparse(), "what[0]['key'] is a torch.sparse_coo tensor"),
    (numpy.array(["a"]), "what[0]['key'] is a numpy array of dtype <U1"),
]


@pytest.mark.parametrize(("value", "expected"), REFUSED, ids=lambda v: type(v).__name__)
def test_a_value_that_is_not_data_is_refused_with_its_location(
    value: object, expected: str
) -> None:
    with pytest.raises(NotDataError) as caught:
        encode([{"key": value}], "what")
    assert expected in str(caught.value)
