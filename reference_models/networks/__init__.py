"""The networks on a single device, which every parallel run is compared with.

gpt  llama  moe     language models; `decoder` is the stack of layers that they share
cnn  lstm           small networks without attention
"""
