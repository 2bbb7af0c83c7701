"""Streams between two nodes: frames, and both of their ends."""
