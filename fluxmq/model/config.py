"""The configuration, declared once: file, environment, flags, `fluxmq config keys` and the guide are read from here.

Every key has an effect. So add a key together with the code that reads it, and when you remove one,
named in config_refused.py with what to write instead. Numbers that bound something have their reason in limits.py.
Values inside: durations are float seconds, sizes are int bytes (units.py reads the written forms), lists are tuples.
"""
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from fluxmq.model import limits
from fluxmq.model.cluster import Cluster
from fluxmq.model.listeners import (
    AddressText,
    AmqpSlot,
    Bytes,
    Listener,
    MqttSlot,
    MutualTlsAmqp,
    MutualTlsTcp,
    MutualTlsWebSocket,
    PlainAmqp,
    PlainTcp,
    PlainWebSocket,
    Seconds,
    TlsAmqp,
    TlsTcp,
    TlsWebSocket,
    V3Tcp,
    V3WebSocket,
    V5Tcp,
    V5WebSocket,
)
from fluxmq.model.namespaces import NamespaceSpec
from fluxmq.model.queues import QueueSpec
from fluxmq.model.record import Record

__all__ = [
    "Amqp091", "Amqp091Listeners", "Auth", "Broker", "Config", "Log", "Mqtt", "MqttTcp", "MqttWebSocket",
    "QueueManager", "Server", "Session", "Storage",
]


class MqttTcp(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Listeners for MQTT over TCP."""

    plain: PlainTcp = PlainTcp()
    v3: V3Tcp = V3Tcp()
    v5: V5Tcp = V5Tcp()
    tls: TlsTcp = TlsTcp()
    mtls: MutualTlsTcp = MutualTlsTcp()


class MqttWebSocket(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Listeners for MQTT over WebSocket."""

    plain: PlainWebSocket = PlainWebSocket()
    v3: V3WebSocket = V3WebSocket()
    v5: V5WebSocket = V5WebSocket()
    tls: TlsWebSocket = TlsWebSocket()
    mtls: MutualTlsWebSocket = MutualTlsWebSocket()


class Mqtt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Listeners for MQTT."""

    tcp: MqttTcp = MqttTcp()
    websocket: MqttWebSocket = MqttWebSocket()


class Amqp091Listeners(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Listeners for AMQP 0-9-1."""

    plain: PlainAmqp = PlainAmqp()
    tls: TlsAmqp = TlsAmqp()
    mtls: MutualTlsAmqp = MutualTlsAmqp()


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What listens where."""

    mqtt: Mqtt = Mqtt()
    amqp091: Amqp091Listeners = Amqp091Listeners()
    health_enabled: Annotated[bool, Meta(description="Serve /health, /ready, /metrics and /cluster.")] = True
    health_addr: Annotated[AddressText, Meta(description=(
        "Where to serve them, over HTTP and to whoever asks: other machines only if the address here says so."
    ))] = "127.0.0.1:8081"
    admin_socket: Annotated[str, Meta(max_length=4096, description=(
        "Unix socket for `fluxmq queue`, for the broker's own user and root; at most 107 bytes. Empty: admin.sock in "
        "storage.dir, none with storage.type memory. off: none."))] = ""
    max_connections_per_address: Annotated[int, Meta(ge=0, le=10_000_000, description=(
        "Connections at once from one address (of IPv6: from one /64), over all listeners; further ones are closed as "
        "they come, and counted. 0 = a quarter of what all listeners together take (max_connections of each, and the "
        "limit of open files), at least 64."))] = 0
    exempt_networks: Annotated[tuple[str, ...], Meta(description=(
        "Addresses and networks whose connections are not counted per address, and whose failed logins are neither "
        "refused later nor banned (auth.delay_after, auth.ban_after): load balancers, gateways of many clients."
    ))] = ("127.0.0.0/8", "::1/128")
    proxy_networks: Annotated[tuple[str, ...], Meta(description=(
        "Addresses and networks of load balancers and TLS proxies which begin each connection with a PROXY header (the "
        "PROXY protocol, version 1 or 2): it is demanded from there, at every listener, and the address in it is the "
        "client's, for limits, bans and logs. From elsewhere such a header is refused as any other garbage."
    ))] = ()
    proxy_usernames: Annotated[bool, Meta(description=(
        "Take the user name from the client certificate that a balancer of proxy_networks has verified (the Common "
        "Name in the header of version 2), as username_from of a TLS listener does, at listeners without TLS."
    ))] = False
    shutdown_timeout: Annotated[Seconds, Meta(description=(
        "On SIGTERM: time for sending what is in hand and for the last sync; then connections are cut."))] = 30.0

    @property
    def serves_health(self) -> bool:
        """Whether /health and the others are served."""
        return self.health_enabled and bool(self.health_addr)


class Broker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients may do, and what the broker keeps for all of them."""

    max_message_size: Annotated[Bytes, Meta(ge=1024, le=limits.PAYLOAD_BYTES_MAX, description=(
        "Largest payload accepted over MQTT. MQTT 5 clients learn it as Maximum Packet Size (64 KiB larger, for topic "
        "and properties)."))] = 1 << 20
    max_retained_messages: Annotated[int, Meta(ge=0, le=100_000_000, description=(
        "Retained messages kept; a further one is delivered but not kept. 0 = none: who publishes one is "
        "refused."))] = 100_000
    max_retained_bytes: Annotated[Bytes, Meta(ge=1024, description=(
        "Payload and topic bytes of all retained messages; a further one is delivered but not kept."))] = 256 << 20
    max_qos: Annotated[int, Meta(ge=0, le=2, description=(
        "Highest QoS accepted from publishers and granted to subscribers."))] = 2
    topic_alias_max: Annotated[int, Meta(ge=0, le=65535, description=(
        "Topic aliases a client may define on a connection (MQTT 5); 0 = none."))] = 64
    outbound_topic_alias_max: Annotated[int, Meta(ge=0, le=65535, description=(
        "Topic aliases the broker defines on a connection, at most what the client allows; 0 = none."))] = 64
    receive_maximum: Annotated[int, Meta(ge=1, le=65535, description=(
        "QoS 1 and 2 messages a client may have unacknowledged towards the broker. MQTT 5 clients are told and "
        "disconnected beyond it; of 3.1.1 clients no more is read until something is acknowledged."))] = 1024
    max_topic_levels: Annotated[int, Meta(ge=1, le=limits.TOPIC_LEVELS_MAX, description=(
        "Levels in a topic or filter."))] = 32
    max_user_properties: Annotated[int, Meta(ge=0, le=limits.USER_PROPERTIES_MAX, description=(
        "User properties in one packet."))] = 64
    max_subscriptions_per_client: Annotated[int, Meta(ge=1, le=10_000_000, description=(
        "Subscriptions of one session; a further one is refused with 0x97, quota exceeded."))] = 10_000
    sys_interval: Annotated[Seconds, Meta(description="Between updates of $SYS/broker/…; 0s = none.")] = 10.0
    server_keep_alive_max: Annotated[Seconds, Meta(le=65535, description=(
        "Longest keep alive. An MQTT 5 client that asks for more, or for none, is given this as Server Keep Alive. "
        "Whole seconds; 0s = any."))] = 0.0
    route_cache_entries: Annotated[int, Meta(ge=16, le=limits.ROUTE_CACHE_ENTRIES_MAX, description=(
        "Topics whose matching subscriptions are remembered."))] = 65536
    response_information: Annotated[str, Meta(max_length=1024, description=(
        "Response Information for MQTT 5 clients that ask for it, the root of their response topics; empty = none."
    ))] = ""


class Session(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept for one client."""

    max_sessions: Annotated[int, Meta(ge=1, le=100_000_000, description=(
        "Sessions, connected or not; a further client is refused with 0x97, quota exceeded."))] = 100_000
    max_state_bytes: Annotated[Bytes, Meta(ge=65536, description=(
        "Bytes of the topic filters and wills of all sessions. Beyond that a subscription, or a client with a will, "
        "is refused with 0x97, quota exceeded."))] = 512 * 1024 * 1024
    max_expiry_interval: Annotated[Seconds, Meta(description=(
        "Longest time a session outlives its connection: caps the Session Expiry Interval of MQTT 5, and is that of a "
        "3.1.1 session with CleanSession 0. 0s = no cap."))] = 0.0
    max_offline_queue_size: Annotated[int, Meta(ge=10, le=100_000_000, description=(
        "Messages waiting for one session, connected or not, beyond those in flight."))] = 1000
    max_offline_queue_bytes: Annotated[Bytes, Meta(ge=65536, description=(
        "The same in bytes of payload, topic and properties; as many may be in flight, not acknowledged."))] = 64 << 20
    max_inflight_messages: Annotated[int, Meta(ge=1, le=65535, description=(
        "QoS 1 and 2 messages sent to a client and not acknowledged yet; an MQTT 5 client may ask for fewer."))] = 256
    offline_queue_policy: Annotated[Literal["evict", "reject"], Meta(description=(
        "When that queue is full: evict drops the oldest message, reject the new one."))] = "evict"
    send_buffer_high: Annotated[Bytes, Meta(ge=65536, description=(
        "Bytes waiting for a client's socket above which QoS 0 messages for it are dropped and counted, and the rest "
        "waits in its queue."))] = 8 << 20
    send_buffer_low: Annotated[Bytes, Meta(ge=4096, description=(
        "Bytes waiting below which it is served again."))] = 1 << 20
    disconnect_on_full: Annotated[bool, Meta(description=(
        "Close a client whose send buffer is full instead of dropping its QoS 0 messages."))] = False


class Amqp091(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients of AMQP 0-9-1 may do."""

    virtual_hosts: Annotated[tuple[str, ...], Meta(description=(
        "Namespaces that are there besides those of `namespaces`: for AMQP each is a virtual host. Without \"/\" among "
        "them clients of AMQP may not open that one."
    ))] = ("/",)
    frame_max: Annotated[Bytes, Meta(ge=limits.AMQP_FRAME_BYTES_MIN, le=limits.AMQP_FRAME_BYTES_MAX, description=(
        "Largest frame offered to clients; they may choose a smaller one. Larger messages come in several frames."
    ))] = 128 << 10
    channel_max: Annotated[int, Meta(ge=1, le=65535, description=(
        "Channels a client may have open on a connection."))] = 2047
    max_message_size: Annotated[Bytes, Meta(ge=1024, le=limits.PAYLOAD_BYTES_MAX, description=(
        "Largest message body accepted; a larger one closes its channel with 406. broker.max_message_size is that of "
        "MQTT."))] = 16 << 20
    heartbeat: Annotated[Seconds, Meta(le=65535, description=(
        "Proposed to clients, whose answer counts. A connection on which nothing is heard for twice that long ends. "
        "Whole seconds; 0s = none is proposed."))] = 60.0
    consumer_timeout: Annotated[Seconds, Meta(description=(
        "A channel that leaves a delivery unsettled for so long is closed with 406, and its deliveries go to others; "
        "0s = never."))] = 1800.0
    memory_high: Annotated[Bytes, Meta(description=(
        "Memory of the broker's process from which on connections that publish are blocked, told so and not read; "
        "they go on at nine tenths of it. 0B = six tenths of the machine's, or of its control group's. Messages of "
        "several frames that are under way have an eighth of it, at least 64MiB; beyond that they are received one "
        "after the other."))] = 0


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log on standard error."""

    level: Annotated[Literal["debug", "info", "warn", "error"], Meta(description="Least severe level shown.")] = "info"
    format: Annotated[Literal["text", "json"], Meta(description=(
        "text: time, level and message, then key=value; json: one object per line."))] = "text"


class Storage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where sessions and retained messages live."""

    type: Annotated[Literal["rocksdb", "memory"], Meta(description=(
        "rocksdb: journal and embedded store in dir; memory: nothing survives a restart."))] = "rocksdb"
    dir: Annotated[str, Meta(min_length=1, description=(
        "Directory of journal and store, made when it is missing. badger_dir is read as another name for it."
    ))] = "./fluxmq-data"
    session_durability: Annotated[Literal["fsync", "buffered"], Meta(description=(
        "What an acknowledgement to a client of a persistent session means: fsync, it is on the disk; buffered, it "
        "will be within sync_interval."))] = "fsync"
    sync_interval: Annotated[Seconds, Meta(ge=0.001, le=3600, description=(
        "Between syncs when buffered: what a loss of power may cost."))] = 1.0
    journal_file_size: Annotated[Bytes, Meta(ge=1 << 20, le=limits.JOURNAL_FILE_BYTES_MAX, description=(
        "A journal file is closed and checkpointed at this size."))] = 64 << 20
    recover_on_startup: Annotated[bool, Meta(description=(
        "Repair what is damaged at a start, as `fluxmq log repair` does, instead of refusing to start: what stood on "
        "the damaged bytes is given up and reported. A torn last write is no damage."))] = False


class Auth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may connect, and do what."""

    allow_anonymous: Annotated[bool | None, Meta(description=(
        "Admit clients without user name. Unset: only without users, and only on loopback addresses and on "
        "listeners that require a certificate."))] = None
    users_file: Annotated[str, Meta(description="Users and their password hashes; `fluxmq user add` writes it.")] = ""
    cluster_users: Annotated[bool, Meta(description=(
        "Instead of users_file: users are the cluster's, in etcd. `fluxmq user` without --file changes them, through "
        "any node."))] = False
    acl_file: Annotated[str, Meta(description=(
        "Who may publish and subscribe to what; empty = everybody everything."))] = ""
    cluster_permissions: Annotated[bool, Meta(description=(
        "Instead of acl_file: permissions are the cluster's, in etcd. `fluxmq permission` changes them, through any "
        "node; what they do not allow is denied."))] = False
    ask_timeout: Annotated[Seconds, Meta(ge=0.1, le=3600, description=(
        "How long an authority that decides elsewhere, for a program that has a broker inside, may take about one "
        "packet; without an answer that is refused, once. The access list answers at once."))] = 5.0
    delay_after: Annotated[int, Meta(ge=0, le=1_000_000, description=(
        "Failed logins of one user from one address, from one address, or of one user, that are refused at once; "
        "further ones are refused later, after 0.5 s, 1 s, 2 s and so on. See docs/guide/access.md."))] = 3
    delay_max: Annotated[Seconds, Meta(le=3600, description=(
        "Longest time until a failed login is refused; 0s = always at once."))] = 8.0
    ban_after: Annotated[int, Meta(ge=0, le=1_000_000, description=(
        "Failed logins of one user from one address (of IPv6: from one /64) within ban_time, after which that user may "
        "not log in from there for ban_time. 0 = never."))] = 10
    ban_address_after: Annotated[int, Meta(ge=0, le=1_000_000, description=(
        "The same of all users from one address: nobody may connect from there then, but users who have logged in from "
        "there before. 0 = never."))] = 50
    ban_time: Annotated[Seconds, Meta(ge=0.1, le=31_536_000, description=(
        "How long a ban lasts, and how long failed logins are remembered."))] = 600.0

    @property
    def has_users(self) -> bool:
        """Whether clients log in by the name of a user."""
        return bool(self.users_file) or self.cluster_users


class QueueManager(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all queues share."""

    auto_create: Annotated[Literal["", "classic", "stream", "ephemeral"], Meta(description=(
        "The type of queue that a publish or subscription to an unknown $queue/<name> makes; empty: it is refused."
    ))] = ""
    auto_commit_interval: Annotated[Seconds, Meta(description=(
        "At least so long between two commits of what a stream's group with `ack: auto` has read; its readers commit "
        "when they leave, too. 0s = a few times a second."))] = 0.0
    cache_size: Annotated[Bytes, Meta(ge=1 << 20, description=(
        "Messages kept in memory although they are on disk too, for readers that are not far behind."))] = 64 << 20
    max_unsettled_per_consumer: Annotated[int, Meta(ge=1, le=10_000_000, description=(
        "Messages that one consumer may have without settling them, whatever its prefetch; it gets no more until it "
        "settles some, and the others of its queue go on."))] = 100_000
    max_unsettled: Annotated[int, Meta(ge=1000, le=1_000_000_000, description=(
        "The same for all consumers together, with what waits to be delivered again. One connection gets at most as "
        "many as are left free of these: alone, half of them. Each takes about 200 bytes of memory."))] = 1_000_000
    segment_size: Annotated[Bytes, Meta(ge=1 << 20, le=1 << 30, description=(
        "A file of messages is closed at this size; retention gives back whole files."))] = 64 << 20
    metrics_queues: Annotated[int, Meta(ge=0, le=100_000, description=(
        "Queues that /metrics shows one by one, besides the totals, and groups of each: those of the configuration "
        "first, then by name. /metrics?queue=NAME shows those that are named."))] = 100
    compression: Annotated[Literal["zstd", "none"], Meta(description=(
        "How messages are stored that outlive a journal file; zstd only where it saves an eighth."))] = "zstd"


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything."""

    server: Server = Server()
    broker: Broker = Broker()
    session: Session = Session()
    amqp091: Amqp091 = Amqp091()
    log: Log = Log()
    storage: Storage = Storage()
    auth: Auth = Auth()
    queue_manager: QueueManager = QueueManager()
    record: Record = Record()
    cluster: Cluster = Cluster()
    namespaces: Annotated[tuple[NamespaceSpec, ...], Meta(extra={"kind": "namespaces"}, description=(
        "Namespaces that clients may connect to, and what limits each: for AMQP they are virtual hosts. \"/\" is "
        "always there. One that is no longer named here keeps what it has, and nobody can connect to it; see "
        "docs/guide/namespaces.md."))] = ()
    queues: Annotated[tuple[QueueSpec, ...], Meta(description=(
        "Queues that are made at start, or changed to what is said here; see docs/queues.md for their keys. One that "
        "is no longer named here stays: delete it with `fluxmq queue delete`."))] = ()

    def namespace_names(self) -> tuple[str, ...]:
        """Every namespace that the configuration names, once."""
        return tuple(dict.fromkeys(("/", *(spec.name for spec in self.namespaces), *self.amqp091.virtual_hosts)))

    def listeners(self) -> Iterator[tuple[str, Listener]]:
        """The slots that are on, as ("server.mqtt.tcp.plain", slot), in the order of the schema."""
        yield from self.mqtt_listeners()
        yield from self.amqp091_listeners()

    def mqtt_listeners(self) -> Iterator[tuple[str, MqttSlot]]:
        for transport, section in (("tcp", self.server.mqtt.tcp), ("websocket", self.server.mqtt.websocket)):
            for name in section.__struct_fields__:
                slot: MqttSlot = getattr(section, name)
                if slot.addr:
                    yield f"server.mqtt.{transport}.{name}", slot

    def amqp091_listeners(self) -> Iterator[tuple[str, AmqpSlot]]:
        section = self.server.amqp091
        for name in section.__struct_fields__:
            slot: AmqpSlot = getattr(section, name)
            if slot.addr:
                yield f"server.amqp091.{name}", slot

    def admin_socket_path(self) -> Path | None:
        """Where the admin socket is; None: there is none."""
        given = self.server.admin_socket
        if given:
            return None if given == "off" else Path(given)
        return None if self.storage.type == "memory" else Path(self.storage.dir) / "admin.sock"

    def anonymous_allowed(self, slot: Listener) -> bool:
        """Whether a client without user name gets in here: `auth.allow_anonymous`, or what its absence means."""
        if self.auth.allow_anonymous is not None:
            return self.auth.allow_anonymous
        if self.auth.has_users:
            return False
        address = slot.address
        return slot.requires_certificate or (address is not None and address.is_loopback)
