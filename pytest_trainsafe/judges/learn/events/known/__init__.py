"""The slips that the observer knows, each with its rule and its usual cause."""
