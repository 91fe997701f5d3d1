"""A small GPT made only of torch's own layers, like the models that users pass to frameworks.

Its forward returns the mean loss of a micro-batch, as DeepSpeed's engine expects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

#: Maps queries, keys and values to the output of attention, without projections.
Mix = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a plain GPT."""

    layers: int = 2
    hidden: int = 32
    heads: int = 4
    vocabulary: int = 64
    seq_len: int = 16


class Attention(nn.Module):
    """Causal self-attention with separate projections for queries, keys and values.

    `mix(q, k, v)` takes and returns tensors [batch, sequence, heads, head size]; the default is
    `causal`.
    """

    def __init__(self, sizes: Sizes, mix: Mix | None = None) -> None:
        super().__init__()
        self.mix = mix or causal
        self.head_size = sizes.hidden // sizes.heads
        self.q_proj = nn.Linear(sizes.hidden, sizes.hidden)
        self.k_proj = nn.Linear(sizes.hidden, sizes.hidden)
        self.v_proj = nn.Linear(sizes.hidden, sizes.hidden)
        self.o_proj = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, sequence, hidden] to the same shape."""
        q, k, v = (self._heads(layer(x)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        out: torch.Tensor = self.o_proj(self.mix(q, k, v).flatten(2))
        return out

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], -1, self.head_size)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return causal attention; all tensors are [batch, sequence, heads, head size]."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2)


class MLP(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.up_proj = nn.Linear(sizes.hidden, 4 * sizes.hidden)
        self.down_proj = nn.Linear(4 * sizes.hidden, sizes.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, sequence, hidden] to the same shape."""
        out: torch.Tensor = self.down_proj(functional.gelu(self.up_proj(x)))
        return out


class Gate(nn.Module):
    """Chooses an expert for each token, and the weight of the expert's output."""

    def __init__(self, sizes: Sizes, experts: int) -> None:
        super().__init__()
        self.wg = nn.Linear(sizes.hidden, experts, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [tokens, hidden] to weights [tokens, experts], zero for all but the chosen expert."""
        weights = self.wg(x).softmax(dim=-1)
        chosen = functional.one_hot(weights.argmax(dim=-1), weights.shape[-1])
        out: torch.Tensor = weights * chosen
        return out


class Experts(nn.Module):
    """A mixture of experts: for each token, the output of one MLP times a weight.

    The gate chooses the MLP and the weight.
    """

    def __init__(self, sizes: Sizes, count: int) -> None:
        super().__init__()
        self.gate = Gate(sizes, count)
        self.experts = nn.ModuleList(MLP(sizes) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, sequence, hidden] to the same shape."""
        weights = self.gate(x.flatten(0, 1))
        outputs = torch.stack([expert(x.flatten(0, 1)) for expert in self.experts], dim=1)
        out: torch.Tensor = (weights.unsqueeze(-1) * outputs).sum(dim=1).view_as(x)
        return out


class Block(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, sizes: Sizes, mix: Mix | None = None) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(sizes.hidden)
        self.attention = Attention(sizes, mix)
        self.mlp_norm = nn.LayerNorm(sizes.hidden)
        self.mlp = MLP(sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, sequence, hidden] to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        out: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class PlainGPT(nn.Module):
    """The model; with `tied`, the output layer shares the weight of the embedding.

    The input can be a part of each sequence if `mix` attends to the whole sequence; `first` is then
    the position of the part's first token.
    """

    def __init__(
        self, sizes: Sizes, tied: bool = False, mix: Mix | None = None, first: int = 0
    ) -> None:
        super().__init__()
        self.first = first
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.positions = nn.Embedding(sizes.seq_len, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes, mix) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of `tokens` and `targets`, both [batch, sequence]."""
        x = self.tokens(tokens) + self.positions.weight[self.first :][: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return mean_loss(self.head(self.norm(x)), targets)


class Embedding(nn.Module):
    """The embeddings of tokens and positions, which come before the first block."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.positions = nn.Embedding(sizes.seq_len, sizes.hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens [batch, sequence] to [batch, sequence, hidden]."""
        out: torch.Tensor = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return out


def layers_of(sizes: Sizes) -> list[nn.Module]:
    """Return the model as a list of layers; each takes the output of the previous one.

    The last layer returns the logits.
    """
    head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
    blocks = [Block(sizes) for _ in range(sizes.layers)]
    return [Embedding(sizes), *blocks, nn.LayerNorm(sizes.hidden), head]


def mean_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of logits [batch, sequence, vocabulary], in float32 or float64."""
    if logits.dtype != torch.float64:
        logits = logits.float()
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def text(sizes: Sizes, step: int, index: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens and targets of micro-batch `index` of step `step`.

    Both have the shape [samples, sizes.seq_len].  They depend only on the arguments.
    """
    generator = torch.Generator().manual_seed(1_000_003 * step + index)
    drawn = torch.randint(0, sizes.vocabulary, (samples, sizes.seq_len + 1), generator=generator)
    return drawn[:, :-1], drawn[:, 1:]
