"""Training data, generated or read where the tests run: `text` for language models, `images`."""
