"""Recordings and results in Spark: profile, replay, verify, compare, gate; and the data source `fluxmq`."""
