"""How the reference models are trained.

language  supervised            the training loops of language models, and of the CNN and the LSTM
optimizer  main_gradients       AdamW with master weights; float32 gradients
annotations                     reads the layouts in `gpt.yaml`, `llama.yaml` and `moe.yaml`
outcome                         the result that a program of a silent error returns
"""
