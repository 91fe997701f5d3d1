"""Trusted single-device models, their parallel versions, and bugs planted in the latter.

Start with a program, `gpt.py`, `llama.py` or `moe.py`.  Their parts, one concept a file:

    config  embedding  attention  mlp  decoder  loss  model     a GPT on one device
    rotary  norm  llama_model                                   what a Llama has instead
    routing  experts  moe_layer  moe_model                      a mixture of experts in a Llama
    training  optimizer  main_gradients                         the loop, AdamW, master weights
    supervised  images  cnn_model  lstm_model                   what `cnn.py` and `lstm.py` have
    plain_update  plain_fp8    what a single device has of its own: loss scale, clipping, FP8 scales
    text                                                        what it learns from
    parallel/                                                   the same models over many ranks
    bugs/                                                       what can be planted in parallel/
"""
