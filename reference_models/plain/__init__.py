"""Independent second implementations, which share no code with the parallel models.

update      loss scale, gradient norm, clipping and update on a single device
routing     the biases of routers on a single device
fp8         FP8 linear layers on a single device
gpt         a GPT made of torch's own layers, which DeepSpeed trains
"""
