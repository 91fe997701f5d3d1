"""Multi-token prediction: a further layer also predicts, from each position, the token after next.

(DeepSeek-AI 2024, "DeepSeek-V3", section 2.2, with a depth of one.)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.embedding import TokenEmbedding
from pytest_trainsafe.reference_models.blocks.loss import CrossEntropy
from pytest_trainsafe.reference_models.blocks.norm import RMSNorm
from pytest_trainsafe.reference_models.config import DeepSeekConfig


class MultiTokenPrediction(nn.Module):
    """Maps the decoder's output and targets to the weighted losses of the tokens after the targets.

    `mtp(hidden, targets, *tables)` takes [batch, sequence, hidden] and targets [batch, sequence],
    and returns losses [batch, sequence], 0 for the last position of a sequence.  The embedding and
    the output layer use the weights of the model's own (`share`).  `layer` is a transformer layer.
    """

    def __init__(self, config: DeepSeekConfig, layer: nn.Module) -> None:
        super().__init__()
        self.weight = config.mtp_weight
        self.embedding = TokenEmbedding(config)
        self.enorm: nn.Module = RMSNorm(config.hidden)
        self.hnorm: nn.Module = RMSNorm(config.hidden)
        self.eh_proj = nn.Linear(2 * config.hidden, config.hidden, bias=False)
        self.transformer_layer = layer
        self.final_layernorm: nn.Module = RMSNorm(config.hidden)
        self.output_layer: nn.Module = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.following: nn.Module = Following()
        self.cross_entropy: nn.Module = CrossEntropy()

    def forward(self, hidden: Tensor, targets: Tensor, *tables: Tensor) -> Tensor:
        pair = torch.cat([self.enorm(self.embedding(targets)), self.hnorm(hidden)], dim=-1)
        further = self.transformer_layer(self.eh_proj(pair), *tables)
        logits = self.output_layer(self.final_layernorm(further))
        following = self.following(targets)
        losses: Tensor = self.cross_entropy(logits, following.clamp(min=0))
        return self.weighted(losses.masked_fill(following < 0, 0))

    def weighted(self, losses: Tensor) -> Tensor:
        """Return the losses as they are added to those of the model."""
        return self.weight * losses

    def share(self, word_embeddings: nn.Module, output_layer: nn.Module) -> None:
        """Use the weights of the model's embedding and output layer."""
        self.embedding.word_embeddings.weight = word_embeddings.weight
        self.output_layer.weight = output_layer.weight


class Following(nn.Module):
    """Maps targets [batch, sequence] to those of the next position; -1 after the last position."""

    def forward(self, targets: Tensor) -> Tensor:
        following = targets.roll(-1, dims=1)
        following[:, -1] = -1
        return following
