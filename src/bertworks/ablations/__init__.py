"""Claims of the paper, shown again on the user's own model and data."""
