"""A decoder put together from the blocks of all other models, as its configuration says."""

from __future__ import annotations

from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.mlp import MLP
from pytest_trainsafe.reference_models.blocks.moe_layer import MoELayer
from pytest_trainsafe.reference_models.blocks.norm import RMSNorm
from pytest_trainsafe.reference_models.blocks.rotary import RotaryAttention
from pytest_trainsafe.reference_models.config import MIXTURES, LlamaConfig, MixedConfig
from pytest_trainsafe.reference_models.networks.decoder import TransformerLayer
from pytest_trainsafe.reference_models.networks.llama import Llama


class Mixed(Llama):
    """`model(tokens, positions, targets)` is the loss of every token, [batch, sequence].

    The balancing losses of all mixtures of experts are in it.
    """

    def __init__(self, config: MixedConfig) -> None:
        super().__init__(config)
        self.decoder.final_layernorm = norm_of(config)
        every = MIXTURES[config.mixtures]
        for number, layer in enumerate(self.decoder.layers, start=1):
            if every and number % every == 0:
                layer.mlp = MoELayer(config)
        if config.unused:
            self.spare = nn.Linear(config.hidden, 2)

    def make_layer(self, config: LlamaConfig) -> TransformerLayer:
        assert isinstance(config, MixedConfig)
        return TransformerLayer(
            norm_of(config), RotaryAttention(config), norm_of(config), MLP(config)
        )

    def forward(self, tokens: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        losses = super().forward(tokens, positions, targets)
        for layer in self.decoder.layers:
            if isinstance(layer.mlp, MoELayer):
                losses = losses + layer.mlp.imbalance
        return losses


def norm_of(config: MixedConfig) -> nn.Module:
    """One norm of a model."""
    return RMSNorm(config.hidden) if config.norm == "rms" else nn.LayerNorm(config.hidden)
