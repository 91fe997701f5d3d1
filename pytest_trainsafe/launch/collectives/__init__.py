"""Records of each rank's collectives, and checks that find disagreements between ranks."""
