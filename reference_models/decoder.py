"""The stack of pre-LayerNorm transformer layers."""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.attention import SelfAttention
from pytest_trainsafe.reference_models.config import GPTConfig
from pytest_trainsafe.reference_models.mlp import MLP


class TransformerLayer(nn.Module):
    """Attention, then the MLP, each on a normalised input and added to the residual stream."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.input_layernorm: nn.Module = nn.LayerNorm(config.hidden)
        self.self_attention = SelfAttention(config)
        self.pre_mlp_layernorm: nn.Module = nn.LayerNorm(config.hidden)
        self.mlp = MLP(config)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.self_attention(self.input_layernorm(hidden))
        narrowed: Tensor = self.mlp(self.pre_mlp_layernorm(hidden))
        return hidden + narrowed


class Decoder(nn.Module):
    """All layers and the final LayerNorm: [batch, sequence, hidden] to the same shape."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.layers))
        self.final_layernorm: nn.Module = nn.LayerNorm(config.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        normalised: Tensor = self.final_layernorm(hidden)
        return normalised
