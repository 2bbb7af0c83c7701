"""What bytes say: numbers, text, hashes, checksums. Knows no protocol."""
