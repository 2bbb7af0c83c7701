"""Limits that no configuration can raise, each with its reason. A name ends in its unit; limits are inclusive.

Settings are in config.py. A limit here comes from a specification, bounds what one configured
number may cost, or stops what is always an error or an attack.
"""

__all__ = [
    "ADMIN_BODY_BYTES_MAX",
    "ADMIN_BROWSE_BYTES_MAX",
    "ADMIN_CLIENTS_MAX",
    "ADMIN_CONNECTIONS_MAX",
    "ADMIN_FORWARD_SECONDS_MAX",
    "ADMIN_GATHER_SECONDS_MAX",
    "ADMIN_HANDLE_SECONDS_MAX",
    "ADMIN_MESSAGES_MAX",
    "ADMIN_REPLAY_MAX",
    "AMQP_CLIENT_PROPERTIES_BYTES_MAX",
    "AMQP_FRAME_BYTES_MAX",
    "AMQP_FRAME_BYTES_MIN",
    "AMQP_MEMORY_HIGH_BYTES_MIN",
    "AMQP_SHORT_STRING_BYTES_MAX",
    "CLIENT_ID_BYTES_MAX",
    "CONNECTIONS_PER_ADDRESS_MIN",
    "DELAYED_REFUSALS_MAX",
    "GUESS_ENTRIES_MAX",
    "HTTP_BODY_BYTES_MAX",
    "HTTP_CONNECTIONS_MAX",
    "HTTP_HEAD_BYTES_MAX",
    "HTTP_IDLE_SECONDS_MAX",
    "HTTP_REQUEST_SECONDS_MAX",
    "INTERVAL_SECONDS_MAX",
    "JOURNAL_AHEAD_TIMES_MAX",
    "JOURNAL_BACKLOG_BYTES_MAX",
    "JOURNAL_FILE_BYTES_MAX",
    "KNOWN_LOGINS_MAX",
    "LOG_CAUSES_MAX",
    "LOG_ETCD_INTERVAL_SECONDS",
    "LOG_INTERVAL_SECONDS",
    "NAMESPACE_BYTES_MAX",
    "NAMESPACE_METRICS_MAX",
    "PACKET_BYTES_MAX",
    "PACKET_OVERHEAD_BYTES_MAX",
    "PAYLOAD_BYTES_MAX",
    "ROUTE_CACHE_ENTRIES_MAX",
    "SIZE_BYTES_MAX",
    "STRING_BYTES_MAX",
    "TOPIC_LEVELS_MAX",
    "USER_PROPERTIES_MAX",
]

# Remaining Length has four bytes of seven bits (MQTT 5.0 section 1.5.5); the fixed header adds at most five.
PACKET_BYTES_MAX = 268_435_455 + 5
# Topic, properties and packet identifier of a PUBLISH beside its payload. One string can take 64 KiB; a packet that
# needs more than that beside its payload carries data in the wrong place.
PACKET_OVERHEAD_BYTES_MAX = 64 * 1024
# What is left of the largest packet for the payload, rounded down to a whole number of MiB.
PAYLOAD_BYTES_MAX = 255 << 20
# Two bytes of length (MQTT 5.0 section 1.5.4): topics, filters, user names, every string and binary field.
STRING_BYTES_MAX = 65_535
# The specification lets a client id be any string. It is a key of the store, a label in logs, a part of ACL patterns:
# 1 KiB has room for a UUID, a certificate's name and a path together.
CLIENT_ID_BYTES_MAX = 1024
# A topic of STRING_BYTES_MAX bytes can have 65 536 levels; matching walks one trie node per level for each branch of
# `+`, and depth is the cheapest attack. 1 024 is far beyond names that people give.
TOPIC_LEVELS_MAX = 1024
# 64 KiB of properties hold about 9 000 empty pairs; each becomes two strings wherever it is kept.
USER_PROPERTIES_MAX = 8192
# An entry costs about 200 bytes with its topic: 16 M of them are 3 GiB, more than remembering can give back.
ROUTE_CACHE_ENTRIES_MAX = 1 << 24
# Replay after a crash reads a whole file, and a file is what is kept until its checkpoint: minutes of writing at most.
JOURNAL_FILE_BYTES_MAX = 2 << 30
# Bytes recorded and not yet on disk from which on publishers are not read: a disk that writes 100 MB/s is 0.6 s behind.
JOURNAL_BACKLOG_BYTES_MAX = 64 << 20
# How many times the size of a file the journal grows while a checkpoint is under way, before publishers are not read
# until the next one begins: what queues append is in memory until a checkpoint has written it to segments.
JOURNAL_AHEAD_TIMES_MAX = 4

# Reserved on the disk for when it is full: the broker must still record what consumers settle, about 60 bytes
# each, until a checkpoint removes the settled messages.
QUEUE_RESERVE_BYTES = 4 << 20

# Messages of one log that a checkpoint leaves in the view (and memory) instead of in a file of their own: many queues
# with a few messages need no files, and what is written anew with each that comes is never more than half a page.
QUEUE_SMALL_BYTES = 2048

# The broker keeps a client's properties while it is connected. Libraries send half a KiB; this has room for a name,
# a team and a build, and not for a payload.
AMQP_CLIENT_PROPERTIES_BYTES_MAX = 16 << 10
# Every peer must take frames of this size (AMQP 0-9-1, section 4.2.3): nothing larger is sent before both have agreed.
AMQP_FRAME_BYTES_MIN = 4096
# Each connection holds a whole frame in memory before it parses it; a larger frame saves nothing more.
AMQP_FRAME_BYTES_MAX = 16 << 20
# The memory of the process without connections, with room for some.
AMQP_MEMORY_HIGH_BYTES_MIN = 64 << 20
# One byte of length (AMQP 0-9-1, section 4.2.5.3): names of virtual hosts, queues and exchanges, reply texts.
AMQP_SHORT_STRING_BYTES_MAX = 255

# The same: each namespace can be a virtual host.
NAMESPACE_BYTES_MAX = AMQP_SHORT_STRING_BYTES_MAX
# Namespaces that /metrics shows one by one, five series each: "/" first, then by name. A series that comes and goes
# with a tenant costs the metrics store, so their number is bounded.
NAMESPACE_METRICS_MAX = 100

# 0xFFFFFFFE is the largest interval MQTT 5 can say that is not "for ever" (section 3.1.2.11.2): 136 years.
INTERVAL_SECONDS_MAX = 4_294_967_294.0
# 1 PiB: more than any machine has; keeps sums of sizes far below 64 bits.
SIZE_BYTES_MAX = 1 << 50

# The health server answers small requests of few clients: probes, scrapers, curl.
HTTP_CONNECTIONS_MAX = 64
# Request line and headers. Probes send a few hundred bytes; h11 checks it while the head is incomplete.
HTTP_HEAD_BYTES_MAX = 16 * 1024
# No request needs a body; the server reads and discards one up to this size to find the next request.
HTTP_BODY_BYTES_MAX = 64 * 1024
# From the first byte of a request to its last, and for a reader to take the answer: connections are few.
HTTP_REQUEST_SECONDS_MAX = 10.0
# Between two requests. Prometheus scrapes every 15 to 60 seconds; a longer pause may as well reconnect.
HTTP_IDLE_SECONDS_MAX = 75.0

# Descriptors of view files and segment files that stay open: enough for the files in frequent use, and
# ten thousand queues are normal.
VIEW_OPEN_FILES_MAX = 128
SEGMENT_OPEN_FILES_MAX = 256

# While RocksDB takes a batch nothing else of the broker runs: half a microsecond for each row. A checkpoint of more
# rows than the first goes there in parts that the others bound (storage/staged.py), and is written twice.
VIEW_WRITE_ROWS_MAX = 20_000
VIEW_PART_ROWS_MAX = 4_000
VIEW_PART_BYTES_MAX = 4 * 1024 * 1024
# Left free by the segments of a checkpoint, for its view: on a full disk it has few rows.
VIEW_SPACE_BYTES = 256 * 1024

# The admin socket serves commands and scripts on this machine only.
ADMIN_CONNECTIONS_MAX = 32
# A publish of what goes through a shell; larger payloads come by MQTT. 32 of these at once are 512 MiB at worst.
ADMIN_BODY_BYTES_MAX = 16 << 20
# One answer to a browse: about a screen's worth of thousands of messages, or one large one.
ADMIN_BROWSE_BYTES_MAX = 4 << 20
# Messages in one publish, one page of a browse: each page is made in one go on the loop's thread.
ADMIN_MESSAGES_MAX = 1000
# Clients of one page of their list.
ADMIN_CLIENTS_MAX = 1000
# Dead letters moved by one request; a step of it is 100. More is asked for again.
ADMIN_REPLAY_MAX = 10_000
# Descriptors that listeners leave for the broker's own use: the above, each connection of the health server and of the
# admin socket, and 96 for the rest (the journal and its next files, what the executor's 32 threads have open for a
# moment, listeners, certificates that are read again, logs, a recording's writer).
DESCRIPTORS_KEPT = VIEW_OPEN_FILES_MAX + SEGMENT_OPEN_FILES_MAX + HTTP_CONNECTIONS_MAX + ADMIN_CONNECTIONS_MAX + 96

# Connections of one address when the default of a quarter would be less: on a small broker an office
# behind one address is no attack.
CONNECTIONS_PER_ADDRESS_MIN = 64

# Origins, accounts and pairs of both whose failed logins are counted, and bans that stand: about 200 bytes each, and
# filling the table costs an attacker one failed login for each.
GUESS_ENTRIES_MAX = 16_384
# Accounts with the origins from which they have logged in: about 250 bytes each. A forgotten account only loses the
# exception from delays and bans that others have caused.
KNOWN_LOGINS_MAX = 65_536
# Refused logins whose answer is delayed; each also holds a connection, which other limits count.
DELAYED_REFUSALS_MAX = 4096

# Requests that wait for the disk: a slow sync, a replay that reads segments.
ADMIN_HANDLE_SECONDS_MAX = 30.0
# For the answer of the node of a cluster that has the queue. Less than the above, so that an operator is told which
# node has not answered.
ADMIN_FORWARD_SECONDS_MAX = 20.0
# For what each other node says of its queues in a list, which is shown without it.
ADMIN_GATHER_SECONDS_MAX = 5.0

# At most one log line per cause in this time. A cause names a client, so an attacker chooses their number:
# only the causes used last are remembered, about 300 bytes each.
LOG_INTERVAL_SECONDS = 1.0
LOG_CAUSES_MAX = 1024
# The same of the etcd member's own log: one line a minute says as much as one a second.
LOG_ETCD_INTERVAL_SECONDS = 60.0
