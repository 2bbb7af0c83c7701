"""Sockets: readiness, buffers, TLS's place, and the hot verbs of each protocol's connections."""
