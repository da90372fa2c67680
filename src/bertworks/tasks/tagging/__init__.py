"""Tagging: what each word of a text is, such as a part of speech or a piece of a name."""
