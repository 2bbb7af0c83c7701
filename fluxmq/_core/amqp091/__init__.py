"""Frames, methods, field tables and names of AMQP 0-9-1 to bytes and back."""
