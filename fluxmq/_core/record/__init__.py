"""From recorded bytes to rows."""
