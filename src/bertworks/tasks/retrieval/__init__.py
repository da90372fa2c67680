"""Retrieval: texts as vectors whose cosine measures how similar they are."""
