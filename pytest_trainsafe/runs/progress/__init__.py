"""The current activity of Runs: written by the session, shown by the terminal."""
