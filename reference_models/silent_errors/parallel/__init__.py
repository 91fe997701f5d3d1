"""Errors that need ranks: one program a file, `train(ctx, faulty=False, ...)`, on two ranks."""
