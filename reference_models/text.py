"""Training data: the source code of the running Python's standard library, one token a byte.

Real text, so that losses fall as they do in earnest, and present wherever the tests run.
`gpt.train` calls `batch`.
"""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from pytest_trainsafe.reference_models.config import VOCABULARY

#: Small modules that every supported Python has as a single file.
MODULES = (
    "abc",
    "bisect",
    "calendar",
    "contextlib",
    "csv",
    "dataclasses",
    "fractions",
    "functools",
    "heapq",
    "operator",
    "random",
    "shlex",
    "statistics",
    "textwrap",
    "types",
    "weakref",
)

#: How many windows one seed lies from the next: a prime, so that seeds do not fall in step.
SEED_STRIDE = 1009


def batch(
    index: int, batch_size: int, seq_len: int, seed: int = 0, vocabulary: int = VOCABULARY
) -> tuple[Tensor, Tensor]:
    """The tokens and targets, int64 [batch_size, seq_len], of micro-batch number `index`.

    The text is cut into windows; every index has windows of its own until the text is used up
    (some 10 000 windows of 32 tokens), then they come again.  A target is the next token.
    With a smaller `vocabulary`, neighbouring bytes are one token.
    """
    text = corpus()
    windows = (len(text) - 1) // seq_len
    if windows < batch_size:
        raise ValueError(
            f"batch_size={batch_size} sequences of seq_len={seq_len} need more text than the "
            f"{len(text)} bytes there are; choose smaller ones"
        )
    first = index * batch_size + seed * SEED_STRIDE
    starts = [(first + row) % windows * seq_len for row in range(batch_size)]
    if vocabulary != VOCABULARY:
        text = text * vocabulary // VOCABULARY
    tokens = torch.stack([text[start : start + seq_len] for start in starts])
    targets = torch.stack([text[start + 1 : start + seq_len + 1] for start in starts])
    return tokens, targets


@functools.cache
def corpus() -> Tensor:
    """The whole text as tokens, int64 [length].  The same on every rank of one installation.

    A token is its byte with the bits in reverse order.  Source code is ASCII: with plain bytes
    a vocabulary cut over two ranks would leave the upper half without a single token, and
    nothing that goes wrong there could be seen.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    missing = [name for name in MODULES if not (folder / f"{name}.py").is_file()]
    if missing:
        raise FileNotFoundError(
            f"the training text is the source of Python's standard library, but {folder} lacks "
            f"{', '.join(f'{name}.py' for name in missing)}; use a Python installed with sources"
        )
    joined = b"".join((folder / f"{name}.py").read_bytes() for name in MODULES)
    reverse = torch.tensor([int(f"{byte:08b}"[::-1], 2) for byte in range(256)])
    return reverse[torch.frombuffer(bytearray(joined), dtype=torch.uint8).long()]
