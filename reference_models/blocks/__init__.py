"""The layers of the networks, on a single device.  One concept per file.

embedding  attention  mlp  loss     the layers of a GPT
rotary  norm                        rotary positions and RMSNorm, for a Llama
routing  experts  moe_layer         a mixture of experts
latent  deepseek_moe  prediction    latent attention, shared experts and a further token
deepspeed_moe                       DeepSpeed's mixture of experts; imports DeepSpeed
"""
