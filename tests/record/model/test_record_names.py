"""Canonical names are those of the unwrapped model on a single device."""

from __future__ import annotations

import pytest

from pytest_trainsafe.record.model.names import canonical, split


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", ""),
        ("module", ""),
        ("_orig_mod", ""),
        ("layers.0.fc.weight", "layers.0.fc.weight"),
        ("module.layers.0.fc", "layers.0.fc"),
        ("module.module.layers.0", "layers.0"),
        ("_orig_mod.layers.0", "layers.0"),
        ("module._orig_mod.layers.0", "layers.0"),
        ("_orig_mod.module.layers.0", "layers.0"),
        ("layers.0._orig_mod.fc", "layers.0.fc"),
        ("layers.0._checkpoint_wrapped_module.fc", "layers.0.fc"),
        ("_fsdp_wrapped_module.layers.0._fsdp_wrapped_module.fc.weight", "layers.0.fc.weight"),
        ("layers.0.module.fc", "layers.0.module.fc"),
        ("encoder.module", "encoder.module"),
        ("modules.0", "modules.0"),
        ("my_module.fc", "my_module.fc"),
    ],
)
def test_canonical_names_omit_the_levels_of_wrappers(name: str, expected: str) -> None:
    assert canonical(name) == expected
    assert canonical(canonical(name)) == canonical(name)


@pytest.mark.parametrize(
    ("name", "parts"), [("layers.0.fc.weight", ("layers.0.fc", "weight")), ("scale", ("", "scale"))]
)
def test_split_separates_the_module_from_the_parameter_name(
    name: str, parts: tuple[str, str]
) -> None:
    assert split(name) == parts
