"""Preprocessing on Ray Data: read, prepare, encode and commit. A block is one unit of work."""
