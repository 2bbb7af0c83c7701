"""Ways in for tests: probes of what nothing else reaches."""
