"""Independent second implementations, which share no code with the parallel models.

update      loss scale, gradient norm, clipping and update of a single device
fp8         FP8 linear layers of a single device
gpt         a GPT of torch's own layers, which DeepSpeed trains
"""
