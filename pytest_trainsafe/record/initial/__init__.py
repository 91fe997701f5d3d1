"""Initial parameters that do not depend on the layout."""
