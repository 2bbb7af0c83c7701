__all__ = ["DIRECT_REPLY_TO"]

DIRECT_REPLY_TO: bytes
