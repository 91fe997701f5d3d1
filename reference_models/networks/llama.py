"""A Llama on one device: rotary positions, grouped queries, RMSNorm, SwiGLU, no biases.

(Touvron et al. 2023; grouped queries: Ainslie et al. 2023.)  It is written like the GPT in `gpt.py`
and shares blocks with it.
"""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.embedding import TokenEmbedding
from pytest_trainsafe.reference_models.blocks.loss import CrossEntropy
from pytest_trainsafe.reference_models.blocks.mlp import MLP
from pytest_trainsafe.reference_models.blocks.norm import RMSNorm
from pytest_trainsafe.reference_models.blocks.rotary import RotaryAttention, RotaryTables
from pytest_trainsafe.reference_models.config import LlamaConfig
from pytest_trainsafe.reference_models.networks.decoder import Decoder, TransformerLayer


class Llama(nn.Module):
    """The model: `model(tokens, positions, targets)` returns token losses [batch, sequence]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(config)
        self.rotary_tables = RotaryTables(config.head_dim)
        layers = (self.make_layer(config) for _ in range(config.layers))
        self.decoder = Decoder(layers, RMSNorm(config.hidden))
        self.output_layer: nn.Module = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.cross_entropy: nn.Module = CrossEntropy()

    def make_layer(self, config: LlamaConfig) -> TransformerLayer:
        """Return a new layer; models that derive from this one override it."""
        return TransformerLayer(
            RMSNorm(config.hidden), RotaryAttention(config), RMSNorm(config.hidden), MLP(config)
        )

    def forward(self, tokens: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        tables = self.rotary_tables(positions)
        hidden = self.decoder(self.embedding(tokens), *tables)
        losses: Tensor = self.cross_entropy(self.output_layer(hidden), targets)
        return losses
