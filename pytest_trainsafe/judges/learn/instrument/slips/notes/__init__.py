"""What is noted of a training, so that another run of the same program can be compared with it."""
