"""Notes what a program reads while it runs: files, and environment variables.

A cached reference is reused only while these are unchanged.  `noting` notes them in a rank,
`files` and `variables` find them, and `notes` defines what the ranks hand over.
"""
