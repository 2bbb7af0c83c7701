"""What a node holds in memory: messages, links to connections, its numbers, its ledger."""
