"""Retrieval: indexes of texts, their evaluation, hard negatives, and answers from a corpus."""
