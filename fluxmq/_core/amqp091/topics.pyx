# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Addresses of AMQP as topics of MQTT. See amqp091/topics.pxd."""
from libc.string cimport memcmp, memcpy

from fluxmq._core.wire.levels cimport levels_match
from fluxmq._core.wire.queue_address cimport QUEUE_PREFIX_BYTES, has_queue_prefix, put_queue_address
from fluxmq._core.wire.text cimport TEXT_OK, text_valid, topic_valid

__all__ = ["DIRECT_REPLY_TO", "address_of", "address_of_publish", "filter_of", "matches", "topic_of_address"]

# Queue name from which a client consumes, and that it writes into reply-to, for replies without a queue of its own.
DIRECT_REPLY_TO = b"amq.rabbitmq.reply-to"


cdef void swap(const uint8_t* source, uint32_t n, uint8_t* out) noexcept nogil:
    cdef uint32_t i
    for i in range(n):
        out[i] = 46 if source[i] == 47 else 47 if source[i] == 46 else source[i]


cdef bint one_level(const uint8_t* at, uint32_t n) noexcept nogil:
    """Whether a name can be one level of a topic."""
    cdef uint32_t i
    for i in range(n):
        if at[i] == 47 or at[i] == 43 or at[i] == 35:
            return 0
    return n != 0 and text_valid(at, n)


cdef bint is_queue(const uint8_t* topic, uint32_t n) noexcept nogil:
    """`$queue/<name>` without a level below, the name short enough for a routing key."""
    return (n <= QUEUE_PREFIX_BYTES + SHORTSTR_MAX and has_queue_prefix(topic, n)
            and one_level(topic + QUEUE_PREFIX_BYTES, n - QUEUE_PREFIX_BYTES))


cdef uint32_t short_text(const uint8_t* at, uint32_t n) noexcept nogil:
    """The length of the text that fits a routing key, in whole characters."""
    if n <= SHORTSTR_MAX:
        return n
    n = SHORTSTR_MAX
    while n and at[n] & 0xC0 == 0x80:
        n -= 1
    return n


cdef uint32_t address_of_topic(const uint8_t* topic, uint32_t n, uint8_t* out) noexcept nogil:
    """Writes exchange and routing key as FORMAT_AMQP091 has them, at most 266 bytes. Returns the length."""
    if is_queue(topic, n):
        out[0] = 0
        memcpy(out + 1, topic + QUEUE_PREFIX_BYTES, n - QUEUE_PREFIX_BYTES)
        return n - QUEUE_PREFIX_BYTES + 1
    out[0] = 9
    memcpy(out + 1, b"amq.topic", 9)
    n = short_text(topic, n)
    swap(topic, n, out + 10)
    return 10 + n


cdef bint split_address(const uint8_t* address, uint32_t length, slice_t* exchange, slice_t* key) noexcept nogil:
    if length == 0 or address[0] >= length:
        return 0
    exchange.at = address + 1
    exchange.n = address[0]
    key.at = exchange.at + exchange.n
    key.n = length - 1 - exchange.n
    return 1


cdef uint32_t topic_of(const uint8_t* address, uint32_t length, uint8_t* out) noexcept nogil:
    cdef slice_t exchange
    cdef slice_t key
    if not split_address(address, length, &exchange, &key) or key.n > SHORTSTR_MAX:
        return 0
    if exchange.n == 0 and one_level(key.at, key.n):
        return <uint32_t>(put_queue_address(out, key.at, key.n) - out)
    swap(key.at, key.n, out)
    return key.n if topic_valid(out, key.n, 0) == TEXT_OK else 0


cdef uint32_t reply_topic(const slice_t* reply_to, uint8_t* out) noexcept nogil:
    """The response topic for an MQTT client: the queue of that name, or the topic of `amq.topic/<routing key>`. Returns
    its length; 0: none."""
    if reply_to.n > 10 and memcmp(reply_to.at, b"amq.topic/", 10) == 0:
        swap(reply_to.at + 10, reply_to.n - 10, out)
        if topic_valid(out, reply_to.n - 10, 0) != TEXT_OK or is_queue(out, reply_to.n - 10):
            return 0
        return reply_to.n - 10
    if not one_level(reply_to.at, reply_to.n):
        return 0
    return <uint32_t>(put_queue_address(out, reply_to.at, reply_to.n) - out)


cdef uint32_t reply_route(const uint8_t* key, uint32_t n, uint8_t* out) noexcept nogil:
    if n <= 10 or n > SHORTSTR_MAX or memcmp(key, b"amq.topic/", 10) != 0:
        return 0
    out[0] = 9
    memcpy(out + 1, b"amq.topic", 9)
    memcpy(out + 10, key + 10, n - 10)
    return n


cdef uint32_t reply_address(const slice_t* topic, uint8_t* out) noexcept nogil:
    """The inverse of reply_topic. Returns the length; 0: too long."""
    if is_queue(topic.at, topic.n):
        memcpy(out, topic.at + QUEUE_PREFIX_BYTES, topic.n - QUEUE_PREFIX_BYTES)
        return topic.n - QUEUE_PREFIX_BYTES
    if topic.n > SHORTSTR_MAX - 10:
        return 0
    memcpy(out, b"amq.topic/", 10)
    swap(topic.at, topic.n, out + 10)
    return topic.n + 10


# ---------------------------------------------------------------- binding keys

cdef bytes SWAPPED = bytes.maketrans(b"./", b"/.")


def filter_of(bytes binding_key not None) -> tuple[bytes, bytes] | None:
    """(filter, pattern) of a binding key of amq.topic: an equal topic filter and b"", or a wider filter and the pattern
    for `matches`. None: no topic can match, because a word contains a wildcard or the key begins with `$`."""
    swapped = binding_key.translate(SWAPPED)
    levels = []
    last = None
    for level in swapped.split(b"/"):
        if level == b"*":
            level = b"+"
        elif level != b"#" and (b"#" in level or b"+" in level):
            return None
        if level != b"#" or last != b"#":
            levels.append(level)
        last = level
    if not binding_key or levels[0].startswith(b"$") or not text_valid(<const uint8_t*><const char*>swapped,
                                                                       len(swapped)):
        return None
    pattern = b"/".join(levels)
    wide = levels.index(b"#") + 1 if b"#" in levels else len(levels)
    return (pattern, b"") if wide == len(levels) else (b"/".join(levels[:wide]), pattern)


def matches(bytes pattern not None, bytes topic not None) -> bool:
    """Whether a topic matches a pattern of `filter_of`."""
    cdef const uint8_t* p = <const uint8_t*><const char*>pattern
    cdef const uint8_t* t = <const uint8_t*><const char*>topic
    return levels_match(p, p + len(pattern), t, t + len(topic))


# ---------------------------------------------------------------- for tests and cold uses

def topic_of_address(bytes address not None) -> bytes:
    """The topic of an address; b"": there is none."""
    cdef uint8_t[TOPIC_BYTES_MAX] topic
    return (<const char*>topic)[:topic_of(<const uint8_t*><const char*>address, <uint32_t>len(address), topic)]


def address_of_publish(bytes topic not None) -> bytes:
    """The address of an MQTT client's publish."""
    cdef uint8_t[ADDRESS_BYTES_MAX] address
    return (<const char*>address)[:address_of_topic(<const uint8_t*><const char*>topic, <uint32_t>len(topic), address)]


def address_of(bytes exchange not None, bytes routing_key not None) -> bytes:
    """The address as FORMAT_AMQP091 writes it."""
    return bytes((len(exchange),)) + exchange + routing_key
