"""What publishes, delivers and acknowledges; what it writes to the journal, read back."""
