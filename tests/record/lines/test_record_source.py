"""The line of a class definition is found quickly, with the same result as `inspect`."""

from __future__ import annotations

import functools
import inspect

import pytest
from torch import nn

from pytest_trainsafe.record.lines.source import source_of


def decorate(cls: type) -> type:
    return cls


class Plain:
    class Inner:
        pass


@decorate
class Decorated:
    pass


if hasattr(nn, "Linear"):

    class Twice:
        pass

else:

    class Twice:  # type: ignore[no-redef]
        pass


@pytest.mark.parametrize("cls", [Plain, Plain.Inner, Decorated, Twice, nn.Linear, nn.Module])
def test_source_of_returns_the_file_and_line_that_inspect_returns(cls: type) -> None:
    expected = f"{inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]}"
    assert source_of(cls) == expected


def test_a_class_name_defined_once_is_located_without_parsing_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(inspect, "getsourcelines")
    assert source_of.__wrapped__(nn.TransformerEncoderLayer).endswith(".py:" + _line_of_encoder())


@functools.cache
def _line_of_encoder() -> str:
    file = inspect.getsourcefile(nn.TransformerEncoderLayer)
    assert file is not None
    with open(file) as lines:
        wanted = "class TransformerEncoderLayer("
        return str(next(n for n, line in enumerate(lines, 1) if line.startswith(wanted)))


def test_a_class_created_at_run_time_has_no_source() -> None:
    made = type("Made", (), {"__module__": "builtins"})
    assert source_of(made) == ""
