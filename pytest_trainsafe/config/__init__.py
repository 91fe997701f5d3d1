"""What a user may set: options and their ini twins, settings, checks to accept, needed releases."""
