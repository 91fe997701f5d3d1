"""A GPT on one device: the reference with which every parallel run is compared.

It is simple, so that a reader can trust it: no parallelism, no options, no fused kernels.
Activations are [batch, sequence, hidden], batch first.  Module names follow Megatron-LM's, so that
annotations and reports look like those for Megatron-LM.
"""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.attention import SelfAttention
from pytest_trainsafe.reference_models.blocks.embedding import Embedding
from pytest_trainsafe.reference_models.blocks.loss import CrossEntropy
from pytest_trainsafe.reference_models.blocks.mlp import MLP
from pytest_trainsafe.reference_models.config import GPTConfig
from pytest_trainsafe.reference_models.networks.decoder import Decoder, TransformerLayer


class GPT(nn.Module):
    """A pre-LayerNorm GPT with learned positions.

    `model(tokens, positions, targets)` returns the loss of every token, [batch, sequence].
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config)
        layers = (gpt_layer(config) for _ in range(config.layers))
        self.decoder = Decoder(layers, nn.LayerNorm(config.hidden))
        self.output_layer: nn.Module = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.cross_entropy: nn.Module = CrossEntropy()
        if config.tied:
            tie(self)

    def forward(self, tokens: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        hidden = self.decoder(self.embedding(tokens, positions))
        losses: Tensor = self.cross_entropy(self.output_layer(hidden), targets)
        return losses


def tie(model: GPT) -> None:
    """Make the output layer use the weight of the word embeddings (Press and Wolf 2017)."""
    model.output_layer.weight = model.embedding.word_embeddings.weight


def gpt_layer(config: GPTConfig) -> TransformerLayer:
    """Return a new layer of a GPT."""
    return TransformerLayer(
        nn.LayerNorm(config.hidden), SelfAttention(config), nn.LayerNorm(config.hidden), MLP(config)
    )
