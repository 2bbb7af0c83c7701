"""MQTT clients of other people behind one interface, so that one body of checks serves all of them."""
