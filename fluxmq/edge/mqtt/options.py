"""The configuration of MQTT clients, as the edge needs it."""
import msgspec

__all__ = ["FrontOptions"]


class FrontOptions(msgspec.Struct, frozen=True, kw_only=True):
    """packet_bytes_max: largest accepted packet, bytes. keep_alive_max_s: 0 = any. namespace: for clients without
    another one (edge/mqtt/namespaces.py). Times named ms: milliseconds."""

    packet_bytes_max: int = (1 << 20) + 65536
    receive_max: int = 1024
    inflight_max: int = 256
    topic_alias_max: int = 64
    qos_max: int = 2
    user_properties_max: int = 64
    retain_available: bool = True
    keep_alive_max_s: int = 0
    topic_levels_max: int = 32
    payload_bytes_max: int = 1 << 20
    response_information: str = ""
    write_timeout_ms: int = 60_000
    namespace: str = "/"
