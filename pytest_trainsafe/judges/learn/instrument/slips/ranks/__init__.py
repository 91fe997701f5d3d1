"""What the observer records of several ranks, and slips in what they send each other."""
