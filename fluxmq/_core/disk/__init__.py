"""Formats of the journal and of segments, and the journal's writer."""
