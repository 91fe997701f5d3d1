"""Adapters for training frameworks: one package each, which implements `record.adapter`."""

from __future__ import annotations

#: The import paths of the adapters that every Run uses.
BUILT_IN = (
    "pytest_trainsafe.frameworks.torch_native.adapter:TorchNative",
    "pytest_trainsafe.frameworks.deepspeed.adapter:DeepSpeed",
)
