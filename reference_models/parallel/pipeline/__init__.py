"""Pipeline parallelism: the layers are split over pp.

stages                      which layers a rank has
schedules                   the order in which a rank runs its stages
pipeline  torch_pipeline    run our own schedules, and those of torch.distributed.pipelining
tied                        embeddings that the first and the last stage share
"""
