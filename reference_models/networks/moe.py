"""A Llama whose MLPs are mixtures of experts, as in Mixtral (Jiang et al. 2024)."""

from __future__ import annotations

from torch import Tensor

from pytest_trainsafe.reference_models.blocks.moe_layer import MoELayer
from pytest_trainsafe.reference_models.blocks.norm import RMSNorm
from pytest_trainsafe.reference_models.blocks.rotary import RotaryAttention
from pytest_trainsafe.reference_models.config import LlamaConfig, MoEConfig
from pytest_trainsafe.reference_models.networks.decoder import TransformerLayer
from pytest_trainsafe.reference_models.networks.llama import Llama


class MoE(Llama):
    """The model: `model(tokens, positions, targets)` returns every token's loss [batch, sequence].

    It includes the balancing losses of all layers.
    """

    def make_layer(self, config: LlamaConfig) -> TransformerLayer:
        assert isinstance(config, MoEConfig)
        return TransformerLayer(
            RMSNorm(config.hidden),
            RotaryAttention(config),
            RMSNorm(config.hidden),
            MoELayer(config),
        )

    def forward(self, tokens: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        losses = super().forward(tokens, positions, targets)
        for layer in self.decoder.layers:
            assert isinstance(layer.mlp, MoELayer)
            losses = losses + layer.mlp.imbalance
        return losses
