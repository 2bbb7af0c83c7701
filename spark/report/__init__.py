"""Results as text and as HTML, and the parts of every page; `fluxmq replay show` and `compare`."""
