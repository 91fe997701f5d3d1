"""The parts of a DeepSeek that differ over ranks; the other folders have those of every model.

latent          latent attention, whose heads are divided over tp
mixture         the mixture of experts with shared experts
prediction      the module that predicts a further token
apply_deepseek  makes the single-device model parallel
"""
