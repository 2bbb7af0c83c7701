"""The HTTP half of a WebSocket connection: RFC 6455 section 4.2, MQTT 5.0 section 6.

h11 parses the request; this module checks what concerns a broker: path, origin, version, key, subprotocol.
"""
from __future__ import annotations

import base64
import hashlib
from urllib.parse import urlsplit

import h11

__all__ = ["answer_upgrade"]

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3
# The first that a client offers [MQTT-6.0.0-3] [MQTT-6.0.0-4]; mqttv3.1 is what libraries called it before 3.1.1.
SUBPROTOCOLS = "mqtt", "mqttv3.1"


def _response(status: int, reason: str, text: str, headers: str = "") -> bytes:
    body = (text + "\n").encode()
    return (f"HTTP/1.1 {status} {reason}\r\n{headers}Content-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode() + body


def _same_host(origin: str, host: str) -> bool:
    return urlsplit(origin).netloc.lower() == host.lower()


def answer_upgrade(head: bytes, path: str, origins: tuple[str, ...]) -> tuple[bool, bytes, str]:
    """head: the request, including its blank line. path: the listener's. origins: allowed ones, "*" = any, empty = only
    the same host. A request without Origin does not come from a browser and is not checked for it.

    Returns (accepted, response, reason of a refusal).
    """
    reader = h11.Connection(h11.SERVER)
    try:
        reader.receive_data(head)
        request = reader.next_event()
    except h11.RemoteProtocolError as error:
        return False, _response(400, "Bad Request", f"not an HTTP request: {error}"), str(error)
    if not isinstance(request, h11.Request):
        return False, _response(400, "Bad Request", "not an HTTP request"), "incomplete request"
    headers: dict[str, str] = {}
    for name, value in request.headers:
        key = name.decode("latin-1")
        headers[key] = f"{headers[key]},{value.decode('latin-1')}" if key in headers else value.decode("latin-1")
    refusal = _judge(request, headers, path, origins)
    if refusal is not None:
        return False, refusal[0], refusal[1]
    offered = [item.strip() for item in headers.get("sec-websocket-protocol", "").split(",")]
    chosen = next((each for each in SUBPROTOCOLS if each in offered), None)
    if chosen is None:
        return False, _response(400, "Bad Request", "the subprotocol must be mqtt"), "no subprotocol mqtt"
    accept = base64.b64encode(hashlib.sha1(headers["sec-websocket-key"].encode() + GUID).digest()).decode()
    return True, (f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                  f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {chosen}\r\n\r\n").encode(), ""


def _judge(request: h11.Request, headers: dict[str, str], path: str,
           origins: tuple[str, ...]) -> tuple[bytes, str] | None:
    target = request.target.decode("latin-1").split("?", 1)[0]
    if target != path:
        return _response(404, "Not Found", f"MQTT is at {path}"), f"path {target}"
    if request.method != b"GET":
        return _response(405, "Method Not Allowed", "a WebSocket begins with GET", "Allow: GET\r\n"), "not GET"
    if (headers.get("upgrade", "").lower() != "websocket"
            or "upgrade" not in [item.strip().lower() for item in headers.get("connection", "").split(",")]):
        return _response(426, "Upgrade Required", "this is a WebSocket", "Upgrade: websocket\r\n"), "no upgrade"
    if headers.get("sec-websocket-version") != "13":
        return (_response(426, "Upgrade Required", "the WebSocket version must be 13", "Sec-WebSocket-Version: 13\r\n"),
                "not version 13")
    try:
        key = base64.b64decode(headers.get("sec-websocket-key", ""), validate=True)
    except ValueError:      # also of characters outside of ASCII
        key = b""
    if len(key) != 16:
        return _response(400, "Bad Request", "Sec-WebSocket-Key is not 16 bytes in base64"), "bad key"
    origin = headers.get("origin")
    if origin is not None and "*" not in origins and not (
            origin in origins if origins else _same_host(origin, headers.get("host", ""))):
        return _response(403, "Forbidden", "this origin is not allowed"), f"origin {origin}"
    return None
