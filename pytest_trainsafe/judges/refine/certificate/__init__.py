"""Certificates: text files that say what was proved, and that can be checked again.

content    what a certificate says, and its file
write      the certificate of a proof
checker    checks a certificate on fresh random values, without the search
translate  sequential results, rebuilt from the ranks' tensors
"""
