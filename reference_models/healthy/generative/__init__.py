"""Healthy programs that train generators: adversarial, diffusion, variational; one a file."""
