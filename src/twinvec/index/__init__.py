"""Vectors, texts and ids kept together: `Collection`, exact search."""
