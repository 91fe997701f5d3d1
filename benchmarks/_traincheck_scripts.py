"""Plain PyTorch scripts that both tools of bench_traincheck.py observe.

Each trains for STEPS steps with one thread, takes the CPU time at the beginning of each step and
at the end of the last, and prints these moments in one line after the word MOMENTS.  The model is
called `model` and its optimizer `optimizer`, because TrainCheck finds them by these names.
"""

from __future__ import annotations

_HEAD = """\
import json
import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
steps = int(os.environ["STEPS"])
moments = []
"""

_TAIL = """\
moments.append(time.process_time())
print(f"MOMENTS {json.dumps(moments)}", flush=True)
"""

_CNN = """

class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.drop1, self.drop2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.drop1(F.max_pool2d(x, 2)).flatten(1)
        return F.log_softmax(self.fc2(self.drop2(F.relu(self.fc1(x)))), 1)


model = Cnn()
optimizer = torch.optim.Adadelta(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.7)
x, y = torch.randn(40, 1, 28, 28), torch.randint(0, 10, (40,))
for number in range(steps):
    moments.append(time.process_time())
    optimizer.zero_grad()
    loss = F.nll_loss(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
"""

_LM = """

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        mixed = F.softmax(scores.masked_fill(~seen, float("-inf")), -1) @ v
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Lm(nn.Module):
    def __init__(self, vocabulary=512, width=128):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(128, width)
        self.block1, self.block2 = Block(width, 4), Block(width, 4)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.block2(self.block1(x))))


model = Lm()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 4))
ids = torch.randint(0, 512, (14, 65))
for number in range(steps):
    moments.append(time.process_time())
    optimizer.zero_grad()
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, 512), ids[:, 1:].reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
"""

_DDP = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
dist.init_process_group(
    "gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=2
)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


model = Mlp()
replica = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(1 + rank)
x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
for number in range(steps):
    moments.append(time.process_time())
    optimizer.zero_grad()
    loss = F.cross_entropy(replica(x), y)
    loss.backward()
    optimizer.step()
"""

#: The text of each script, by the name of its program.
SCRIPTS = {
    "CNN": _HEAD + _CNN + _TAIL,
    "LM": _HEAD + _LM + _TAIL,
    "DDP": _HEAD + _DDP + _TAIL + "dist.destroy_process_group()\n",
}

#: The programs that run on two ranks; each rank finds its number in RANK.
ON_TWO_RANKS = frozenset({"DDP"})
