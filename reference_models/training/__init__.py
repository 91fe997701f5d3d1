"""How the reference models are trained.

language  supervised            the training loops: of language models, of the CNN and the LSTM
optimizer  main_gradients       AdamW with master weights; float32 gradients
annotations                     reads the layouts in `gpt.yaml` and its like
outcome                         what a silent error's program returns
"""
