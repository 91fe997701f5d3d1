"""How the reference models are trained.

language        the training loop of the language models
supervised      the training loop of the CNN and the LSTM
optimizer       AdamW, with float32 master weights for parameters of narrower dtypes
main_gradients  the gradients that the optimizer uses, in float32 or a wider dtype
annotations     reads the layouts in `gpt.yaml`, `llama.yaml` and `moe.yaml`
outcome         the result that a program of a silent error returns
"""
