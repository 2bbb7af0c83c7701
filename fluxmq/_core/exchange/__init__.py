"""Where a message goes by exchange, binding and headers."""
