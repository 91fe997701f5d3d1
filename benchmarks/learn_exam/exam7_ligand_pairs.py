"""Whether two molecules fit, from batches of pairs of graphs, by message passing.

Follows https://github.com/pyg-team/pytorch_geometric/issues/1499.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

KINDS = 5


@dataclass(frozen=True)
class Pair:
    """Two graphs: kinds of atoms, and edges as two rows of node numbers."""

    atoms_a: Tensor
    edges_a: Tensor
    atoms_b: Tensor
    edges_b: Tensor
    fit: float

    def increments(self, fields: tuple[str, str]) -> dict[str, int]:
        """By how much the numbers in a field grow for each pair that comes before."""
        return dict(zip(fields, (len(self.atoms_a), len(self.atoms_b)), strict=True))


@dataclass(frozen=True)
class Batch:
    atoms_a: Tensor
    edges_a: Tensor
    graph_a: Tensor
    atoms_b: Tensor
    edges_b: Tensor
    graph_b: Tensor
    fit: Tensor


def collate(pairs: list[Pair], numbered: tuple[str, str]) -> Batch:
    """One large graph of all the first molecules, and one of all the second."""
    merged: dict[str, list[Tensor]] = {"edges_a": [], "edges_b": [], "graph_a": [], "graph_b": []}
    before = dict.fromkeys(merged, 0)
    for at, pair in enumerate(pairs):
        for side in "ab":
            edges = f"edges_{side}"
            merged[edges].append(getattr(pair, edges) + before[edges])
            merged[f"graph_{side}"].append(torch.full((len(getattr(pair, f"atoms_{side}")),), at))
        for name, more in pair.increments(numbered).items():
            before[name] = before.get(name, 0) + more
    whole = {name: torch.cat(parts, -1) for name, parts in merged.items()}
    return Batch(
        atoms_a=torch.cat([pair.atoms_a for pair in pairs]),
        atoms_b=torch.cat([pair.atoms_b for pair in pairs]),
        fit=torch.tensor([pair.fit for pair in pairs]),
        **whole,
    )


class Matcher(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(KINDS, width)
        self.message, self.own = nn.Linear(width, width), nn.Linear(width, width)
        self.score = nn.Bilinear(width, width, 1)

    def describe(self, atoms: Tensor, edges: Tensor, graph: Tensor, graphs: int) -> Tensor:
        h = self.atoms(atoms)
        for _ in range(2):
            heard = torch.zeros_like(h).index_add(0, edges[1], self.message(h)[edges[0]])
            h = torch.tanh(self.own(h) + heard)
        return h.new_zeros(graphs, h.shape[1]).index_add(0, graph, h) / 3

    def forward(self, batch: Batch) -> Tensor:
        n = len(batch.fit)
        a = self.describe(batch.atoms_a, batch.edges_a, batch.graph_a, n)
        b = self.describe(batch.atoms_b, batch.edges_b, batch.graph_b, n)
        return self.score(a, b).squeeze(1)


def molecule() -> tuple[Tensor, Tensor]:
    n = int(torch.randint(4, 8, ()))
    chain = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    return torch.randint(KINDS, (n,)), torch.cat([chain, chain.flip(0)], 1)


def make_pair(charge: Tensor) -> Pair:
    (atoms_a, edges_a), (atoms_b, edges_b) = molecule(), molecule()
    bonds = [(charge[x][e[0]] * charge[x][e[1]]).sum() for x, e in
             ((atoms_a, edges_a), (atoms_b, edges_b))]  # fmt: skip
    return Pair(atoms_a, edges_a, atoms_b, edges_b, float(bonds[0] * bonds[1] > 0))


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    charge = torch.randn(KINDS)
    pairs = [make_pair(charge) for _ in range(120)]
    numbered = ("edges_a", "edges_b") if healthy else ("edges_a", "edge_attr_b")
    net = Matcher(size)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        for chosen in torch.randperm(len(pairs)).split(12):
            batch = collate([pairs[at] for at in chosen.tolist()], numbered)
            loss = nn.functional.binary_cross_entropy_with_logits(net(batch), batch.fit)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"loss": losses}
