"""From one protocol's message to the other's, and a queue's messages to an MQTT session."""
