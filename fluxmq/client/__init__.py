"""The public asyncio client.

`Connection` is one network connection with callbacks; what is built on it comes back by itself.
"""
from fluxmq._core.client_message import Message
from fluxmq._core.client_properties import Properties
from fluxmq.client.connection import Connection
from fluxmq.client.errors import (
    ClientError,
    ConnectionLost,
    ConnectRefused,
    NotConnected,
    PublishRefused,
    QueueFull,
    SessionLost,
    SubscribeRefused,
    WindowFull,
)
from fluxmq.client.options import ConnAck, ConnectOptions, Will

__all__ = ["ClientError", "ConnAck", "ConnectOptions", "ConnectRefused", "Connection", "ConnectionLost", "Message",
           "NotConnected", "Properties", "PublishRefused", "QueueFull", "SessionLost", "SubscribeRefused", "Will",
           "WindowFull"]
