"""Training data: `text` for language models, and `images` for the CNN.

The data is generated, or read from the installed Python, so nothing is downloaded.
"""
