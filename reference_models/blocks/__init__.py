"""The layers that the networks are made of, on a single device.  One concept a file.

embedding  attention  mlp  loss     a GPT's
rotary  norm                        what a Llama has instead
routing  experts  moe_layer         a mixture of experts
deepspeed_moe                       DeepSpeed's mixture of experts; imports DeepSpeed
"""
