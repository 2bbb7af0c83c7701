"""The public asyncio client.

`Client` reconnects by itself. It is built on `Connection`, one network connection with callbacks. See docs/client.md.
"""
from fluxmq._core.client.message import Message
from fluxmq._core.client.properties import Properties
from fluxmq._core.client.publishing import Publishing
from fluxmq.client.backoff import Backoff
from fluxmq.client.client import Client
from fluxmq.client.connection import Connection
from fluxmq.client.errors import (
    ClientError,
    ConnectionLost,
    ConnectRefused,
    FluxError,
    NotConnected,
    ProtocolError,
    PublishRefused,
    QueueFull,
    SessionLost,
    SubscribeRefused,
    UsageError,
    WindowFull,
)
from fluxmq.client.inbox import Delivery
from fluxmq.client.options import ConnAck, ConnectOptions, Will
from fluxmq.client.queues import Queue, QueueConsumer, QueueMessage
from fluxmq.client.results import PublishResult

__all__ = ["Backoff", "Client", "ClientError", "ConnAck", "ConnectOptions", "ConnectRefused", "Connection",
           "ConnectionLost", "Delivery", "FluxError", "Message", "NotConnected", "Properties", "ProtocolError",
           "PublishRefused", "PublishResult", "Publishing", "Queue", "QueueConsumer", "QueueFull", "QueueMessage",
           "SessionLost", "SubscribeRefused", "UsageError", "Will", "WindowFull"]
