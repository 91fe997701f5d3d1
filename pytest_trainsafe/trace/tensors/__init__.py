"""How a trace holds tensors.

payload        files of whole tensors
snapshot       a tensor as it is when it is recorded
sketch, signs  random sketches of tensors whose values are not kept
"""
