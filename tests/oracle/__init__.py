"""Naive twins: slow, plain Python that is obviously right, for tests to compare with."""
