"""Trusted single-device models, their parallel versions, and bugs planted in the latter.

Start with `gpt.py`, the program.  Its parts, one concept a file:

    config  embedding  attention  mlp  decoder  loss  model     a GPT on one device
    training  optimizer  main_gradients                         the loop, AdamW, master weights
    text                                                        what it learns from
    parallel/                                                   the same GPT over many ranks
    bugs/                                                       what can be planted in parallel/
"""
