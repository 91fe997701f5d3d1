"""Pipeline stages: which layers of a model a rank computes, and how.

(GPipe, Huang et al. 2019; for several chunks on a rank, Narayanan et al. 2021, section 2.2.)  With
vpp chunks on each rank, the layers are split into pp * vpp stages, and stage s is on rank s modulo
pp.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.embedding import Embedding
from pytest_trainsafe.reference_models.networks.decoder import Decoder
from pytest_trainsafe.reference_models.networks.deepseek import DeepSeek, Transformer
from pytest_trainsafe.reference_models.networks.llama import Llama
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.marks import mark_shared_embedding


def stage_layers(layers: int, stages: int, stage: int, axes: Axes) -> range:
    """The numbers of the layers of one stage.

    If the number of layers is not a multiple of `stages`, the first stages have one layer more.
    """
    share, more = divmod(layers, stages)
    if axes.planted("pp-stage-division"):
        more = 0  # As if the layers could always be divided evenly.
    first = stage * share + min(stage, more)
    return range(first, first + share + (stage < more))


def cut_into_stages(model: Transformer, axes: Axes) -> list[Stage]:
    """This rank's stages of a whole model, in order.

    They use the model's own modules, so the model must not be used any more.  Raises ValueError if
    there are fewer layers than stages.
    """
    layers, stages = len(model.decoder.layers), axes.pp.size * axes.vpp
    if layers < stages:
        raise ValueError(
            f"layers={layers} are fewer than pp*vpp={stages} stages; give every stage a layer"
        )
    return [
        Stage(model, axes, stage_layers(layers, stages, stage, axes), stage)
        for stage in range(axes.pp.rank, stages, axes.pp.size)
    ]


class Stage(nn.Module):
    """Consecutive layers of a model; also the embedding on the first stage, the loss on the last.

    `stage(inputs, positions, targets)` takes tokens on the first stage and hidden states on the
    others.  It returns hidden states, or on the last stage the loss of every token.  Its modules
    are the model's own modules, with the names that they have in the model.
    """

    def __init__(self, model: Transformer, axes: Axes, layers: range, number: int) -> None:
        super().__init__()
        stages = axes.pp.size * axes.vpp
        self.number, self.first, self.last = number, number == 0, number == stages - 1
        self.shards = axes.tp.size if axes.sp else 1
        words = model.embedding.word_embeddings
        table = words.weight
        assert isinstance(table, nn.Parameter)
        self.width = table.shape[-1]
        at_end = isinstance(model, DeepSeek) or table is model.output_layer.weight
        if at_end and self.first != self.last and not axes.planted("mtp-embedding-grads"):
            mark_shared_embedding(table)
        if self.first:
            self.embedding: nn.Module = model.embedding
        elif self.last and at_end:
            # A copy of the table, with the same name, for the output layer or the further token.
            self.embedding = nn.ModuleDict({"word_embeddings": words})
        if isinstance(model, Llama | DeepSeek):
            self.rotary_tables = model.rotary_tables
        self.decoder = StageDecoder(model.decoder, layers, self.last)
        if self.last:
            self.output_layer = model.output_layer
            self.cross_entropy = model.cross_entropy
        if self.last and isinstance(model, DeepSeek):
            self.mtp = model.mtp

    def forward(self, inputs: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        tables = self.rotary_tables(positions) if hasattr(self, "rotary_tables") else ()
        hidden: Tensor = self._embedded(inputs, positions) if self.first else inputs
        hidden = self.decoder(hidden, *tables)
        if not self.last:
            return hidden
        losses: Tensor = self.cross_entropy(self.output_layer(hidden), targets)
        return losses + self.mtp(hidden, targets, *tables) if hasattr(self, "mtp") else losses

    def hidden_like(self, tokens: Tensor) -> Tensor:
        """An uninitialised tensor with the shape and dtype of the hidden states for this stage."""
        batch, length = tokens.shape
        dtype = next(self.parameters()).dtype
        shape = (batch, length // self.shards, self.width)
        return torch.empty(shape, dtype=dtype, device=tokens.device)

    def _embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        learned = (positions,) if isinstance(self.embedding, Embedding) else ()
        hidden: Tensor = self.embedding(tokens, *learned)
        return hidden


class StageDecoder(nn.Module):
    """Some layers of a decoder and, on the last stage, its final norm."""

    def __init__(self, whole: Decoder, layers: range, last: bool) -> None:
        super().__init__()
        self.layers = NumberedLayers(whole.layers, layers)
        self.run_layers = whole.run_layers
        self.last = last
        if last:
            self.final_layernorm = whole.final_layernorm

    def forward(self, hidden: Tensor, *tables: Tensor) -> Tensor:
        hidden = self.run_layers(list(self.layers), hidden, *tables)
        if not self.last:
            return hidden
        normalised: Tensor = self.final_layernorm(hidden)
        return normalised


class NumberedLayers(nn.ModuleList):
    """Some layers of a list, with the numbers that they have in that list as their names."""

    def __init__(self, layers: nn.ModuleList, numbers: range) -> None:
        super().__init__()
        for number in numbers:
            self.add_module(str(number), layers[number])
