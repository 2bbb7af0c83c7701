"""A cluster to try out: real nodes on this machine, demo traffic, failures on request (docs/internals/tryout.md)."""
