"""Question answering: find the span of a passage that answers a question."""
