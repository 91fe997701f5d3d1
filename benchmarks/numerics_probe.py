"""Reports the numerics of a rank: CPU capability, threads, and hashes of results.

Run in the ranks by `bench_numerics.py`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch

#: The environment variables that choose the CPU instructions of libraries.
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_MAX_CPU_ISA",
)


def probe() -> dict[str, object]:
    """The capability and threads in effect, the variables, and hashes of computed results.

    A hash that differs from that of the default setting shows that a setting changes results.
    `aten` covers a sum and elementwise functions, `mkl` matrix products in float32 and float64,
    and `dnnl` matrix products in bfloat16 and a convolution.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(67, 131, generator=generator, dtype=torch.float64)
    narrow, low = x.float(), x.bfloat16()
    image, kernel = narrow[None, None], narrow[None, None, :5, :5]
    return {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        # Both launchers set the same environment, so the process's command line distinguishes them.
        "launcher": "warm" if b"warm" in Path("/proc/self/cmdline").read_bytes() else "torchrun",
        "aten": _hash(narrow.sum(), narrow.sum(0), x.exp(), narrow.tanh(), narrow.softmax(-1)),
        "mkl": _hash(narrow @ narrow.T, x @ x.T, narrow.T @ narrow, x.T @ x),
        "dnnl": _hash(low @ low.T, torch.conv2d(image, kernel)),
    }


def _hash(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.double().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]
