"""Transformers 29903 (TrainCheck's B14): weights are missing in the checkpoint.

https://github.com/huggingface/transformers/issues/29903, fixed by pull request 29906: before
saving, tensors that share a storage are taken for the same tensor and all but one are dropped.
On a GPU an LSTM keeps all its weights in one buffer, each in a place of its own.
TrainCheck missed this error in its evaluation.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.checkpoint import Checkpointer
from pytest_trainsafe.reference_models.training.outcome import Outcome


class ByStorage(Checkpointer):
    """A Checkpointer with the error: it takes tensors that share a storage for the same tensor."""

    def unshared(self, state: object) -> list[str]:
        """Return the names to write: for each storage, the name of the first tensor in it."""
        assert isinstance(state, dict)
        first: dict[int, str] = {}
        for name, tensor in state.items():
            first.setdefault(tensor.untyped_storage().data_ptr(), name)
        return list(first.values())


def flatten_weights(lstm: nn.LSTM) -> None:
    """Move the weights of an LSTM into one buffer, as cuDNN keeps them."""
    with torch.no_grad():
        parameters = list(lstm.parameters())
        buffer = torch.cat([each.reshape(-1) for each in parameters])
        pieces = torch.split(buffer, [each.numel() for each in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.data = piece.view_as(parameter)


class Tagger(nn.Module):
    """An LSTM between an embedding and the scores of every position."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """The scores of every position."""
        scores: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return scores


def train(*, faulty: bool, seed: int = 0, steps: int = 4) -> Outcome:
    """Train a model, save it, and load the file into a new model.

    In the Outcome, `facts["written"]` is the number of tensors written, `facts["missing"]` has the
    names of the tensors that the file lacks, and `facts["apart"]` is the largest difference between
    the outputs of the two models.
    """
    torch.manual_seed(seed)
    model = Tagger(vocabulary=12, width=16)
    flatten_weights(model.lstm)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(12, (8, 9))
        labels = (tokens.cumsum(dim=1) % 2).flatten()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = (ByStorage if faulty else Checkpointer)(Path(folder))
        written = checkpointer.save(model)
        restored = Tagger(vocabulary=12, width=16)
        missing = checkpointer.load(restored)
    probe = torch.randint(12, (2, 9))
    apart = float((model(probe) - restored(probe)).detach().abs().max())
    return Outcome(losses, {"written": written, "missing": missing, "apart": apart})
