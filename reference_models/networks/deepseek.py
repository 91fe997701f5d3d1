"""A DeepSeek-V3 on one device: latent attention, shared and routed experts, one further token.

(DeepSeek-AI 2024, "DeepSeek-V2", arXiv 2405.04434, and "DeepSeek-V3", arXiv 2412.19437.)  The
groups of experts that limit the nodes of a token, and the small balancing loss of each sequence,
are left out.
"""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.deepseek_moe import DeepSeekMoE
from pytest_trainsafe.reference_models.blocks.embedding import TokenEmbedding
from pytest_trainsafe.reference_models.blocks.latent import LatentAttention
from pytest_trainsafe.reference_models.blocks.loss import CrossEntropy
from pytest_trainsafe.reference_models.blocks.mlp import MLP
from pytest_trainsafe.reference_models.blocks.norm import RMSNorm
from pytest_trainsafe.reference_models.blocks.prediction import MultiTokenPrediction
from pytest_trainsafe.reference_models.blocks.rotary import RotaryTables
from pytest_trainsafe.reference_models.config import DeepSeekConfig
from pytest_trainsafe.reference_models.networks.decoder import Decoder, TransformerLayer
from pytest_trainsafe.reference_models.networks.gpt import GPT
from pytest_trainsafe.reference_models.networks.llama import Llama


class DeepSeek(nn.Module):
    """The model: `model(tokens, positions, targets)` returns token losses [batch, sequence].

    They include the losses of the further token.
    """

    def __init__(self, config: DeepSeekConfig) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(config)
        self.rotary_tables = RotaryTables(config.rope_dim)
        layers = (deepseek_layer(config, number) for number in range(config.layers))
        self.decoder = Decoder(layers, RMSNorm(config.hidden))
        self.output_layer: nn.Module = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.cross_entropy: nn.Module = CrossEntropy()
        self.mtp = MultiTokenPrediction(config, deepseek_layer(config, config.layers))
        self.mtp.share(self.embedding.word_embeddings, self.output_layer)

    def forward(self, tokens: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        tables = self.rotary_tables(positions)
        hidden = self.decoder(self.embedding(tokens), *tables)
        losses: Tensor = self.cross_entropy(self.output_layer(hidden), targets)
        further: Tensor = self.mtp(hidden, targets, *tables)
        return losses + further


#: The models that are an embedding, a decoder and an output layer.
Transformer = GPT | Llama | DeepSeek


def deepseek_layer(config: DeepSeekConfig, number: int) -> TransformerLayer:
    """Return layer `number`; the first layers have no experts."""
    mlp = MLP(config) if number < config.dense_layers else DeepSeekMoE(config)
    return TransformerLayer(
        RMSNorm(config.hidden), LatentAttention(config), RMSNorm(config.hidden), mlp
    )
