"""What the broker itself reads of a message, whatever protocol it came by."""
