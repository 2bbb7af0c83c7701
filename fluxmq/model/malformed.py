"""What reading bytes as MessagePack or JSON raises when they are not what was expected."""
import msgspec

__all__ = ["MALFORMED"]

# Not only errors of msgspec: what is nested too deeply comes as it is, and so does text that is not UTF-8 before 0.23.
MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
