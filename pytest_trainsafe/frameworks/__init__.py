"""What is known of training frameworks: one package each."""
