"""Encoding of any size: streamed, resumable, in several processes, on Ray."""
