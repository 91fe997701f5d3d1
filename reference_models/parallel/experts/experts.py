"""Experts over ranks: each is split over tp like any MLP, and all are distributed over ep.

A token's hidden state is sent to the ranks of its experts, which send their outputs back
(Lepikhin et al. 2020, section 3).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_trainsafe.reference_models.blocks.experts import Experts
from pytest_trainsafe.reference_models.blocks.mlp import MLP
from pytest_trainsafe.reference_models.config import ExpertsConfig, fc1_blocks
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.parallel.collectives import all_gather, all_to_all
from pytest_trainsafe.reference_models.parallel.marks import mark_expert, mark_split
from pytest_trainsafe.reference_models.parallel.regions import (
    copy_into,
    exchange,
    gather_into,
    reduce_out,
    scatter_out,
)


class ParallelExperts(Experts):
    """This rank's experts, in the order of their numbers, each split over tp.

    The layer enters the tensor-parallel region once for all experts and leaves it once: with sp it
    gathers the sequence first, and at the end it splits the sum along the sequence again.
    """

    def __init__(self, config: ExpertsConfig, axes: Axes) -> None:
        super().__init__(config)
        self.axes, self.number = axes, config.experts
        here = self.number // axes.ep.size
        self.first = axes.ep.rank * here
        for number in range(self.number):
            if not self.first <= number < self.first + here:
                del self[str(number)]
        for expert in self.values():
            assert isinstance(expert, MLP)
            if axes.tp.size > 1:
                _cut(expert, config, axes)
            for parameter in expert.parameters() if axes.ep.size > 1 else ():
                mark_expert(parameter)

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        tp = self.axes.tp
        if self.axes.sp:
            term = self.mix(
                gather_into(hidden, 1, tp), all_gather(chosen, 1, tp), gather_into(weights, 1, tp)
            )
            return scatter_out(term, 1, tp).to(hidden.dtype)
        term = self.mix(copy_into(hidden, tp), chosen, copy_into(weights, tp))
        return reduce_out(term, tp).to(hidden.dtype)

    def mix(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of the chosen experts' outputs, in the dtype of `weights`."""
        tokens, choices = hidden.flatten(0, 1), chosen.flatten(0, 1)
        token, choice = (choices < self.number).nonzero(as_tuple=True)
        order = choices[token, choice].argsort(stable=True)
        token, choice = token[order], choice[order]
        said = self.ask(tokens[token], choices[token, choice])
        weight = weights.flatten(0, 1)[token, choice, None]
        zeros = torch.zeros_like(tokens, dtype=weights.dtype)
        return zeros.index_add(0, token, weight * said).view_as(hidden)

    def ask(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        """Returns the output of expert `numbers[i]` for row i of `tokens`; `numbers` is sorted."""
        ep = self.axes.ep
        send = torch.bincount(numbers, minlength=self.number)
        here = [len(self)] * ep.size
        come = all_to_all(send, here, here, ep).view(ep.size, len(self))
        to, origin = send.view(ep.size, -1).sum(dim=1).tolist(), come.sum(dim=1).tolist()
        came = exchange(tokens, to, origin, ep)
        # Rows come rank by rank, and from each rank expert by expert.
        whose = torch.arange(len(self), device=come.device).repeat(ep.size)
        whose = whose.repeat_interleave(come.flatten())
        said = torch.zeros_like(came)
        for place, expert in enumerate(self.values()):
            rows = (whose == place).nonzero().squeeze(1)
            said = said.index_copy(0, rows, expert(came[rows]))
        return exchange(said, origin, to, ep)


def _cut(expert: MLP, config: ExpertsConfig, axes: Axes) -> None:
    """Replaces the expert's linear layers by this rank's part of the MLP's width.

    They do not communicate; the layer around the experts does.
    """
    fc1, width, tp = fc1_blocks(config, config.expert_ffn), config.hidden, axes.tp.size
    expert.linear_fc1 = nn.Linear(width, sum(fc1) // tp, bias=False)
    expert.linear_fc2 = nn.Linear(fc1[0] // tp, width, bias=False)
    for linear, dim, blocks in ((expert.linear_fc1, 0, fc1), (expert.linear_fc2, 1, ())):
        for weight in linear.parameters():
            mark_split(weight, dim, blocks)
