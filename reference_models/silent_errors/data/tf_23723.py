"""Transformers 23723 (TrainCheck's B5): generation goes on after its limit.

https://github.com/huggingface/transformers/issues/23723, fixed by pull request 23724: Whisper's
`generate` adds the length of the prompt to `max_new_tokens` before it trims the prompt to the
window.  With a prompt that is too long, more tokens than allowed are generated.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.generation import Generator
from pytest_trainsafe.reference_models.training.outcome import Outcome


class Whisper(Generator):
    """A generator with the error: its limit counts the tokens that are trimmed off the prompt."""

    def fit(self, prompt: Tensor, max_new_tokens: int) -> tuple[Tensor, int]:
        """Return the last part of the prompt, and a length limit that counts the whole prompt."""
        kept, _ = super().fit(prompt, max_new_tokens)
        return kept, prompt.shape[1] + max_new_tokens


class Decoder(nn.Module):
    """A recurrent language model."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of every position's successor."""
        logits: Tensor = self.head(self.recurrent(self.embedding(tokens))[0])
        return logits


#: Half of the window: a longer prompt is trimmed.  Prompts grow by `GROWTH` tokens a step.
LONGEST, GROWTH = 8, 4


def train(*, faulty: bool, seed: int = 0, steps: int = 5) -> Outcome:
    """Train, and generate a sample after every step with a limit of 3 new tokens.

    In the Outcome, `facts["generated"]` has the number of new tokens of each sample, and
    `facts["limit"]` is 3.
    """
    torch.manual_seed(seed)
    model = Decoder(vocabulary=12, width=24)
    generator = (Whisper if faulty else Generator)(model, window=2 * LONGEST)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses, generated = [], []
    for step in range(steps):
        model.train()
        tokens = (torch.randint(12, (8, 1)) + torch.arange(11)) % 12
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        prompt = torch.arange(GROWTH * (step + 1))[None] % 12
        generated.append(generator.generate(prompt, max_new_tokens=3).shape[1])
    return Outcome(losses, {"generated": generated, "limit": 3})
