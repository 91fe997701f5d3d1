"""What the package needs of torch's private parts, a capability a file.

Each file has a test that checks the capability itself against the installed torch.
"""
