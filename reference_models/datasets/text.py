"""Training data: source code of the running Python's standard library, and inserted tokens.

A third of each sequence is real text, with one token per byte: Python's own source code, which is
present wherever the tests run.  Text uses only a third of the vocabulary, and never the first or
last token of a vocabulary shard, so it would not show a mask that is wrong by one at a shard's
boundary.  Therefore the other two thirds of each sequence are inserted tokens: they go through the
whole vocabulary, and in every micro-batch they include the first and last tokens of shards.
`gpt.train` calls `batch`.
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

#: Numbers of shards of a vocabulary; every micro-batch has tokens at the boundaries of the shards.
SHARDS = (2, 4)

#: One in EVERY inserted tokens is the first or last token of a vocabulary shard.
EVERY = 5

#: Possible strides through the vocabulary; the first that has no common factor with the size of the
#: vocabulary is used.
STRIDES = (37, 41, 43, 47, 1)

#: The number of windows by which consecutive seeds differ, a prime.
SEED_STRIDE = 1009


def batch(
    index: int, batch_size: int, seq_len: int, seed: int = 0, vocabulary: int = VOCABULARY
) -> tuple[Tensor, Tensor]:
    """Return the tokens and targets of micro-batch number `index`.

    Both are int64 of shape [batch_size, seq_len].  The text is cut into windows; each index has
    other windows until the text is used up (some 10 000 windows of 32 tokens), and then they
    repeat.  Two thirds of each window are replaced by `awkward` tokens: the end in even rows, the
    beginning in odd ones.  A target is the next token.  With a smaller `vocabulary`, neighbouring
    byte values become one token.
    """
    text = corpus()
    windows = (len(text) - 1) // seq_len
    if windows < batch_size:
        raise ValueError(
            f"batch_size={batch_size} sequences of seq_len={seq_len} need more text than the "
            f"{len(text)} bytes that there are; choose a smaller batch_size or seq_len"
        )
    first = index * batch_size + seed * SEED_STRIDE
    starts = [(first + row) % windows * seq_len for row in range(batch_size)]
    rows = torch.stack([text[start : start + seq_len + 1] for start in starts]).long()
    if vocabulary != VOCABULARY:
        rows = rows * vocabulary // VOCABULARY
    length = 2 * (seq_len + 1) // 3
    for row in range(batch_size):
        odd = (index * batch_size + row) % 2  # the same however rows are divided into batches
        place = 1 if odd else seq_len - length  # a place that both tokens and targets include
        rows[row, place : place + length] = awkward((first + row) % windows, length, vocabulary)
    return rows[:, :-1], rows[:, 1:]


def awkward(window: int, length: int, vocabulary: int) -> Tensor:
    """Return the tokens to insert into one window, int64 of shape [length].

    Every fifth token is the first or last one of a vocabulary shard.  The others go through the
    vocabulary in long strides, which continue from one window to the next, so that every shard has
    some of them.
    """
    edges = torch.tensor(boundaries(vocabulary))
    places = torch.arange(window * length, (window + 1) * length)
    stride = next(each for each in STRIDES if math.gcd(each, vocabulary) == 1)
    counted = (places - (places + 1) // EVERY) * stride % vocabulary
    return torch.where(places % EVERY == EVERY - 1, edges[places // EVERY % len(edges)], counted)


def boundaries(vocabulary: int) -> list[int]:
    """Return the first and the last token of every shard, for all numbers of shards in SHARDS."""
    cuts = {shard * vocabulary // parts for parts in SHARDS for shard in range(parts + 1)}
    ends = {min(cut, vocabulary - 1) for cut in cuts} | {max(cut - 1, 0) for cut in cuts}
    return sorted(ends)


@functools.cache
def corpus() -> Tensor:
    """Return the whole text as tokens, uint8 of shape [length].

    It is the same on every rank of one installation.  A token is its byte with the bits in reverse
    order.  The reason is that source code is ASCII: with plain bytes, the upper half of a
    vocabulary that is divided over two ranks would have no token, and an error there would go
    unseen.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    missing = [name for name in MODULES if not (folder / f"{name}.py").is_file()]
    if missing:
        raise FileNotFoundError(
            f"the training text is the source of Python's standard library, but {folder} lacks "
            f"{', '.join(f'{name}.py' for name in missing)}; use a Python installed with sources"
        )
    joined = bytearray().join((folder / f"{name}.py").read_bytes() for name in MODULES)
    reverse = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
    return torch.frombuffer(joined.translate(reverse), dtype=torch.uint8)
