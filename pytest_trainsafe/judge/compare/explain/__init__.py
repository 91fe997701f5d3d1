"""What may explain a wrong tensor: the evidence, and the words for it."""
