"""What is known of training frameworks: one package each, behind `record.adapter`."""

from __future__ import annotations

#: The adapters that every Run has, by import path.
BUILT_IN = (
    "pytest_trainsafe.frameworks.torch_native.adapter:TorchNative",
    "pytest_trainsafe.frameworks.deepspeed.adapter:DeepSpeed",
)
