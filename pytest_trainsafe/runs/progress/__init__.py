"""What Runs are doing at the moment: the session writes it, and the terminal shows it."""
