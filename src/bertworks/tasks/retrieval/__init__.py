"""Retrieval: texts as vectors whose cosine says how alike they are."""
