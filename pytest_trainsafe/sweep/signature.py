"""The marker's name and signature, apart from its reader: pytest shows them in every run."""

from __future__ import annotations

from pytest_trainsafe.core.axes import AXES
from pytest_trainsafe.core.usage import listing

MARKER = "trainsafe"

#: The keywords of the marker that are settings; every other keyword is an axis.
SETTING_WORDS = ("args", "candidate_args", "reference", "seed", "timeout", "accept", "mesh")

SIGNATURE = (
    f"{MARKER}(program, *, args={{}}, candidate_args={{}}, reference={{}}, seed=0, timeout=300, "
    "accept=[], mesh=None, **axes): compare the program's parallel training with a trusted run, "
    "at every point of the axes. The program is a function of a context, "
    f"'package.module:function' or Script(path, args=[]). Axes: {listing(AXES)}, and the "
    "program's own parameters, each with one value or a list of values. candidate_args go to "
    "the run under test only, and "
    "reference={'pp': 2} makes the trusted run a pipeline, where one device is too small. "
    "mesh=Mesh(...) gives a script mesh axes of its own"
)
