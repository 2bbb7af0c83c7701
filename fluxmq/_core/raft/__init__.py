"""Raft for one replication group: its state machine, its log in memory, its messages' bytes.
docs/decisions/0013-replication-groups.md."""
