"""The packs of learned invariants that the package ships, and the recipes for learning them.

pytorch          optimizers, gradients, modes, data and schedulers, on each rank separately
amp              gradient scalers and autocast
ddp              ranks that hold replicas of a model
tensor_parallel  ranks that split layers
fsdp             ranks that shard parameters with `fully_shard`
deepspeed        programs that DeepSpeed's engines train, on each rank and between ranks

`recipes` lists the programs from which each pack is learned.
"""

from pytest_trainsafe.core.links import unlinked

__path__ = unlinked(__path__)
