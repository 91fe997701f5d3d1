"""Healthy programs of two ranks, `train(ctx, ...)`: one program a file."""
