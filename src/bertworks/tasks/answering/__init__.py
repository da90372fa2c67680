"""Question answering: which span of a passage answers a question."""
