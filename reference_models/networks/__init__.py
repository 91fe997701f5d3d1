"""The networks on a single device, with which every parallel run is compared.

gpt  llama  moe  deepseek   language models; `decoder` is the stack of layers that they share
cnn  lstm                   small networks without attention
"""
