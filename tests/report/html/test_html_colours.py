"""The colours of the page can be told apart with every common kind of colour vision."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pytest_trainsafe.report import html

STYLE = (Path(html.__file__).parent / "assets" / "page.css").read_text(encoding="utf-8")

#: How linear RGB looks to people who lack one kind of cone (Machado, Oliveira and Fernandes, "A
#: Physiologically-based Model for Simulation of Color Vision Deficiency", 2009, severity 1).
VISIONS = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}

#: The least distance in CIELAB at which neighbouring areas are clearly told apart.
CLEAR = 12.0


def palette(scheme: str) -> dict[str, np.ndarray]:
    """The colours of a scheme, as linear RGB, by name."""
    light, dark = STYLE.split("@media screen and (prefers-color-scheme: dark)", 1)
    text = light if scheme == "light" else dark.split("* { box-sizing", 1)[0]
    found = re.findall(r"--([\w-]+): #([0-9a-f]{6})", text)
    assert len(found) > 30
    values = {name: np.array([int(c[i : i + 2], 16) for i in (0, 2, 4)]) / 255 for name, c in found}
    return {
        name: np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)
        for name, v in values.items()
    }


def lab(linear: np.ndarray) -> np.ndarray:
    """A colour in CIELAB, under D65."""
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    xyz = to_xyz @ linear.clip(0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_allowed_and_wrong_errors_and_signs_of_values_differ_in_colour(
    scheme: str, vision: str
) -> None:
    seen = {name: lab(VISIONS[vision] @ colour) for name, colour in palette(scheme).items()}

    def apart(one: str, other: str) -> float:
        return float(np.linalg.norm(seen[one] - seen[other]))

    pairs = [(f"l{allowed}", f"l{wrong}") for allowed in range(5) for wrong in (5, 6, 7)]
    pairs += [("l0", "l3"), ("l5", "l7"), ("low", "high"), ("low", "ground"), ("high", "ground")]
    pairs += [("c0", "c1"), ("pass", "fail")]
    close = {pair: round(apart(*pair), 1) for pair in pairs if apart(*pair) < CLEAR}
    assert close == {}
