"""Recordings of traffic: their format, how they are written and read, and the broker's side of it."""
