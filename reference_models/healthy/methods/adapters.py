"""LoRA (Hu et al., 2022): low-rank adapters beside frozen weights, merged for evaluation.

Only the adapters and the head are trained and stored; at the end they are loaded into a new model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LoRALinear(nn.Module):
    """A linear layer whose weight is frozen, plus B A; `train(False)` adds it to the weight."""

    def __init__(self, base: nn.Linear, r: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling, self.merged = alpha / r, False
        self.lora_dropout = nn.Dropout(dropout)

    def train(self, mode: bool = True) -> LoRALinear:
        super().train(mode)
        if mode == self.merged:
            delta = (self.lora_B @ self.lora_A).detach() * self.scaling
            self.base.weight.data += -delta if mode else delta
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        if not self.merged:
            out = out + self.lora_dropout(x) @ self.lora_A.T @ self.lora_B.T * self.scaling
        return out


class Encoder(nn.Module):
    """A small Transformer with one layer and a head."""

    def __init__(self, vocab: int, d: int, classes: int) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(16, d)
        self.q_proj, self.k_proj = nn.Linear(d, d), nn.Linear(d, d)
        self.v_proj, self.o_proj = nn.Linear(d, d), nn.Linear(d, d)
        self.ln1, self.ln2, self.ln_f = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.score = nn.Linear(d, classes)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        h = self.ln1(x)
        heads = [
            p(h).unflatten(-1, (2, -1)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        ]
        a = F.scaled_dot_product_attention(*heads)
        x = x + self.o_proj(a.transpose(1, 2).flatten(-2))
        x = x + self.mlp(self.ln2(x))
        out: Tensor = self.score(self.ln_f(x).mean(1))
        return out


def inject(model: Encoder, r: int, targets: tuple[str, ...]) -> None:
    """Freeze a model, and replace the named layers."""
    model.requires_grad_(False)
    model.score.requires_grad_(True)
    for name in targets:
        setattr(model, name, LoRALinear(getattr(model, name), r, alpha=2 * r, dropout=0.05))


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    return {k: v.clone() for k, v in state.items() if "lora_" in k or k.startswith("score.")}


def train(
    *,
    seed: int = 0,
    steps: int = 12,
    d: int = 16,
    r: int = 2,
    every: int = 4,
    wide: bool = False,
) -> list[float]:
    """Tell which of two tokens is more frequent; with `wide`, all projections are adapted."""
    torch.manual_seed(seed)
    base = Encoder(vocab=8, d=d, classes=2)
    pretrained = {k: v.clone() for k, v in base.state_dict().items()}
    targets = ("q_proj", "k_proj", "v_proj", "o_proj") if wide else ("q_proj", "v_proj")
    inject(base, r, targets)
    trainable = [p for p in base.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=2e-2, weight_decay=0.0)
    ids_val = torch.randint(8, (32, 9))
    y_val = ((ids_val == 2).sum(1) > (ids_val == 5).sum(1)).long()
    losses = []
    for step in range(steps):
        base.train()
        ids = torch.randint(8, (32, 9))
        y = ((ids == 2).sum(1) > (ids == 5).sum(1)).long()
        loss = F.cross_entropy(base(ids), y)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(trainable, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if (step + 1) % every == 0:
            base.eval()
            with torch.no_grad():
                F.cross_entropy(base(ids_val), y_val)
    base.train()
    served = Encoder(vocab=8, d=d, classes=2)
    served.load_state_dict(pretrained)
    inject(served, r, targets)
    served.load_state_dict(adapter_state(base), strict=False)
    served.eval()
    with torch.no_grad():
        served(ids_val)
    return losses
