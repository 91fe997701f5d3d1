"""A stack of pre-norm transformer layers, with any norms, attention and MLP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.attention import SelfAttention
from pytest_trainsafe.reference_models.blocks.latent import LatentAttention


class TransformerLayer(nn.Module):
    """Attention, then the MLP; each gets a normalised input and adds to the residual stream.

    `tables` has further inputs of the attention: the tables of rotary positions, or nothing.
    """

    def __init__(
        self,
        input_layernorm: nn.Module,
        self_attention: SelfAttention | LatentAttention,
        pre_mlp_layernorm: nn.Module,
        mlp: nn.Module,
    ) -> None:
        super().__init__()
        self.input_layernorm = input_layernorm
        self.self_attention = self_attention
        self.pre_mlp_layernorm = pre_mlp_layernorm
        self.mlp = mlp

    def forward(self, hidden: Tensor, *tables: Tensor) -> Tensor:
        hidden = hidden + self.self_attention(self.input_layernorm(hidden), *tables)
        narrowed: Tensor = self.mlp(self.pre_mlp_layernorm(hidden))
        return hidden + narrowed


class Decoder(nn.Module):
    """All layers and the final norm; maps [batch, sequence, hidden] to the same shape."""

    def __init__(self, layers: Iterable[TransformerLayer], final_layernorm: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.final_layernorm = final_layernorm
        #: The function that runs the layers; recomputation replaces it.
        self.run_layers: Callable[..., Tensor] = one_after_another

    def forward(self, hidden: Tensor, *tables: Tensor) -> Tensor:
        hidden = self.run_layers(list(self.layers), hidden, *tables)
        normalised: Tensor = self.final_layernorm(hidden)
        return normalised


def one_after_another(layers: Sequence[nn.Module], hidden: Tensor, *tables: Tensor) -> Tensor:
    """Run each layer on the output of the previous one."""
    for layer in layers:
        hidden = layer(hidden, *tables)
    return hidden
