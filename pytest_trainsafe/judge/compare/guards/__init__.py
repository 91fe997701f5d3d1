"""Guards against checks that could not have failed, and what was not compared."""
