"""Training data: source code of the running Python's standard library, and awkward tokens.

A third of each sequence is real text, one token a byte, present wherever the tests run.  Text uses
a third of the vocabulary, and never the first or last token of a shard of it: a mask that is wrong
by one at a shard's boundary goes unseen.  So the rest goes through the whole vocabulary, and comes
back to the boundaries in every micro-batch.  `gpt.train` calls `batch`.
"""

from __future__ import annotations

import functools
import math
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

#: Parts into which a vocabulary may be cut: tokens at their boundaries are in every micro-batch.
SHARDS = (2, 4)

#: One inserted token of so many is at a boundary.
EVERY = 5

#: Strides through the vocabulary: the first that shares no factor with its size, or 1.
STRIDES = (37, 41, 43, 47, 1)

#: How many windows one seed lies from the next: a prime, so that seeds do not fall in step.
SEED_STRIDE = 1009


def batch(
    index: int, batch_size: int, seq_len: int, seed: int = 0, vocabulary: int = VOCABULARY
) -> tuple[Tensor, Tensor]:
    """The tokens and targets, int64 [batch_size, seq_len], of micro-batch number `index`.

    The text is cut into windows; every index has windows of its own until the text is used up
    (some 10 000 windows of 32 tokens), then they come again.  Two thirds of each window are
    `awkward` instead: the end in even rows, the beginning in odd ones.  A target is the next token.
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
    rows = torch.stack([text[start : start + seq_len + 1] for start in starts])
    length = 2 * (seq_len + 1) // 3
    for row in range(batch_size):
        odd = (index * batch_size + row) % 2  # of the row, however rows are put into batches
        place = 1 if odd else seq_len - length  # among the tokens and among the targets
        rows[row, place : place + length] = awkward((first + row) % windows, length, vocabulary)
    return rows[:, :-1], rows[:, 1:]


def awkward(window: int, length: int, vocabulary: int) -> Tensor:
    """The inserted tokens of one window, int64 [length].

    Every fifth is at a boundary of a shard; the others go through the vocabulary in long strides,
    from one window to the next, so that every shard has some of them.
    """
    edges = torch.tensor(boundaries(vocabulary))
    places = torch.arange(window * length, (window + 1) * length)
    stride = next(each for each in STRIDES if math.gcd(each, vocabulary) == 1)
    counted = (places - (places + 1) // EVERY) * stride % vocabulary
    return torch.where(places % EVERY == EVERY - 1, edges[places // EVERY % len(edges)], counted)


def boundaries(vocabulary: int) -> list[int]:
    """The first and the last token of every shard, of any number of shards in SHARDS."""
    cuts = {shard * vocabulary // parts for parts in SHARDS for shard in range(parts + 1)}
    ends = {min(cut, vocabulary - 1) for cut in cuts} | {max(cut - 1, 0) for cut in cuts}
    return sorted(ends)


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
