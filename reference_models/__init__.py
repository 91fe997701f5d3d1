"""Trusted single-device models, their parallel versions, and bugs to plant in the parallel ones.

Start with a program: `gpt.py`, `llama.py`, `moe.py`, `deepseek.py`, `cnn.py` or `lstm.py`.  Their
parts:

    config  rules   the sizes of the models, and the Points at which they can be trained
    networks/       the models on one device; `blocks/` are their layers
    training/       the training loops, AdamW, master weights
    datasets/       the training data
    parallel/       the same models over many ranks
    plain/          independent second implementations, with which candidates are compared
    bugs/           bugs that can be planted in `parallel/`
    corpus          the Points at which tests and benchmarks judge the models

For DeepSpeed: the programs `deepspeed_gpt.py` and `deepspeed_resumed.py`, its past bugs in
`deepspeed_bugs/`, and its open ones in `deepspeed_open/`.
"""

from pytest_trainsafe.core.links import unlinked

__path__ = unlinked(__path__)
