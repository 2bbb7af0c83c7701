"""Plays the operations of one partition against a broker: clients of MQTT and AMQP 0-9-1 on one event loop."""
