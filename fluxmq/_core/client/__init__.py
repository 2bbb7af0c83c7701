"""The client's side of MQTT, without a socket."""
