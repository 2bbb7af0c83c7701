"""What tests of a running broker share: the broker as a process, a client of bytes, SCRAM, WebSocket."""
