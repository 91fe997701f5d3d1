"""How a trace holds tensors.

payload        files of whole tensors
snapshot       a tensor's values, or their sketch, at the time when it is recorded
sketch, signs  random projections of tensors whose values are not kept
"""
