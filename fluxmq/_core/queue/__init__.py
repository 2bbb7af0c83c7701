"""Logs, groups and members of durable queues, streams and ephemeral queues."""
