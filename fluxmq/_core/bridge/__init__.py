"""From one protocol's message to the other's."""
