"""What reading bytes as MessagePack or JSON raises when they are not what was expected."""
import msgspec

__all__ = ["MALFORMED"]

# Not only errors of msgspec: text that is not UTF-8, and what is nested too deeply, come as they are.
MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
