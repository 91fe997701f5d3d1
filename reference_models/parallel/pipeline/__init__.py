"""Pipeline parallelism: the layers cut over pp.

stages                      which layers a rank has
schedules                   in which order it runs them
pipeline  torch_pipeline    running a schedule: our own, and torch.distributed.pipelining's
tied                        embeddings shared by the first and the last stage
"""
