"""The packs of learned invariants that the package ships, and how they are learned.

pytorch          optimizers, gradients, modes, data and schedulers, on each rank alone
amp              gradient scalers and autocast
ddp              ranks that hold replicas
tensor_parallel  ranks that split layers
fsdp             ranks that shard parameters with `fully_shard`

`recipes` says which programs each is learned from.
"""
