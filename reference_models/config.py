"""The sizes of a reference GPT.  Knows nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass

#: Tokens are bytes.
VOCABULARY = 256


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """The sizes of a GPT; `hidden` is a multiple of `heads`, `seq_len` its longest sequence."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    seq_len: int = 32
    vocabulary: int = VOCABULARY

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "seq_len", "vocabulary"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden={self.hidden} cannot be divided into heads={self.heads} equal heads; "
                "choose a hidden size that is a multiple of the number of heads"
            )

    @property
    def head_dim(self) -> int:
        """The width of one attention head."""
        return self.hidden // self.heads
