"""The public asyncio client."""
