# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""The rows of a recording as columns. See record/columns.pxd."""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

from fluxmq._core.amqp091.values cimport room_free, room_put, room_t
from fluxmq._core.wire.hash cimport hash_bytes
from fluxmq._core.wire.sizes cimport fit_i32, low_u32
from fluxmq._core.wire.text cimport utf8_valid

from fluxmq._core.amqp091 import methods as amqp091_methods
from fluxmq._core.errors import CorruptError

cdef enum:
    ROOM_MIN = 4096         # rows; doubled when full
    SLOTS_MIN = 256         # a power of two
    CLASSES = 128
    LONGS = 8               # number of arrays with 8-byte numbers, with 4-byte numbers, and of all arrays
    INTS = 10
    ARRAYS = 24
    TEXT_MAX = 0x7FFFFFFF   # bytes of one column in one batch: Arrow's offsets have 32 bits
    # The hash of words has a public seed: a client that forces collisions costs only processor time of the recorder's
    # process.
    SEED = 0x5EED

cdef tuple PACKETS = ("", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBSCRIBE",
                      "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH")
cdef tuple EVENTS = ("opened", "accepted", "closed", "lost", "malformed", "protocol-header", "heartbeat")
cdef int16_t[CLASSES][CLASSES] method_kinds


cdef int put_text(room_t* data, const uint8_t* at, size_t n) except -1:
    if n > TEXT_MAX - data.used:
        raise CorruptError("one read of a recording has more text than 2 GiB")
    return room_put(data, at, n)


cdef Words words_of(names):
    cdef Words words = Words()
    for name in names:
        text = name.encode()
        words.add(<const uint8_t*><const char*>text, <size_t>len(text))
    return words


cdef list kind_names():
    """Names in the order of row_t.kind. Also fills the table of kinds of methods."""
    names = [*PACKETS, *EVENTS]
    memset(method_kinds, 0xFF, sizeof(method_kinds))
    for number, method in sorted(amqp091_methods.METHODS.items()):
        method_kinds[<int>(number >> 16)][<int>(number & 0xFFFF)] = <int16_t>len(names)     # fits: under a hundred
        names.append(method.name)
    return names


cdef int kind_of_method(uint32_t code) noexcept:
    if code >> 16 >= CLASSES or code & 0xFFFF >= CLASSES:
        return -1
    return method_kinds[code >> 16][code & 0xFFFF]


cdef str kind_name(int kind):
    return KIND_NAMES[kind] if 0 < kind < len(KIND_NAMES) else None


@cython.final
cdef class Words:
    """Machine. Numbered byte strings."""

    def __cinit__(self):
        self.room = SLOTS_MIN
        self.offsets = <int32_t*>calloc(self.room + 1, sizeof(int32_t))
        self.slots = <uint32_t*>calloc(SLOTS_MIN, sizeof(uint32_t))
        self.hashes = <uint64_t*>calloc(SLOTS_MIN, sizeof(uint64_t))
        self.mask = SLOTS_MIN - 1
        memset(&self.data, 0, sizeof(room_t))
        if self.offsets == NULL or self.slots == NULL or self.hashes == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.offsets)
        free(self.slots)
        free(self.hashes)
        room_free(&self.data)

    cdef int32_t find(self, const uint8_t* at, size_t n) noexcept:
        cdef uint64_t hashed = hash_bytes(at, n, SEED)
        cdef uint32_t slot = low_u32(hashed) & self.mask, word
        while self.slots[slot]:
            if self.hashes[slot] == hashed:
                word = self.slots[slot] - 1
                if (<size_t>(self.offsets[word + 1] - self.offsets[word]) == n
                        and (n == 0 or memcmp(self.data.data + self.offsets[word], at, n) == 0)):
                    return <int32_t>word
            slot = (slot + 1) & self.mask
        return -1

    cdef int32_t add(self, const uint8_t* at, size_t n) except -1:
        cdef uint64_t hashed = hash_bytes(at, n, SEED)
        cdef int32_t* offsets
        if (self.count + 1) * 2 > self.mask:
            self.rehash()
        if self.count == self.room:
            offsets = <int32_t*>realloc(self.offsets, (self.room * 2 + 1) * sizeof(int32_t))
            if offsets == NULL:
                raise MemoryError()
            self.offsets = offsets
            self.room *= 2
        put_text(&self.data, at, n)
        self.count += 1
        self.offsets[self.count] = fit_i32(self.data.used)
        self.place(hashed, self.count)
        return fit_i32(self.count - 1)

    cdef void place(self, uint64_t hashed, uint32_t entry) noexcept:
        cdef uint32_t slot = low_u32(hashed) & self.mask
        while self.slots[slot]:
            slot = (slot + 1) & self.mask
        self.slots[slot] = entry
        self.hashes[slot] = hashed

    cdef int rehash(self) except -1:
        cdef uint32_t* slots = self.slots
        cdef uint64_t* hashes = self.hashes
        cdef uint32_t size = self.mask + 1, i
        self.slots = <uint32_t*>calloc(size * 2, sizeof(uint32_t))
        self.hashes = <uint64_t*>calloc(size * 2, sizeof(uint64_t))
        if self.slots == NULL or self.hashes == NULL:
            free(self.slots)
            free(self.hashes)
            self.slots = slots
            self.hashes = hashes
            raise MemoryError()
        self.mask = size * 2 - 1
        for i in range(size):
            if slots[i]:
                self.place(hashes[i], slots[i])
        free(slots)
        free(hashes)
        return 0

    cdef int32_t index(self, const uint8_t* at, size_t n) except -1:
        cdef int32_t found = self.find(at, n)
        return found if found >= 0 else self.add(at, n)

    cdef void clear(self) noexcept:
        if self.count:
            memset(self.slots, 0, (<size_t>self.mask + 1) * sizeof(uint32_t))
        self.count = 0
        self.data.used = 0

    cdef tuple taken(self):
        if utf8_valid(self.data.data, self.data.used):
            return (self.count, copied(self.offsets, (self.count + 1) * sizeof(int32_t)),
                    copied(self.data.data, self.data.used))
        # A routing key of AMQP may be any bytes.
        cdef list texts = []
        cdef uint32_t i
        cdef Words clean = Words()
        for i in range(self.count):
            text = copied(self.data.data + self.offsets[i], <size_t>(self.offsets[i + 1] - self.offsets[i]))
            texts.append(text.decode("utf-8", "replace").encode())
        for text in texts:
            clean.add(<const uint8_t*><const char*>text, <size_t>len(text))
        return (clean.count, copied(clean.offsets, (clean.count + 1) * sizeof(int32_t)),
                copied(clean.data.data, clean.data.used))


cdef bytes copied(const void* at, size_t n):
    return PyBytes_FromStringAndSize(<const char*>at, <Py_ssize_t>n)


cdef inline int keep_text(strings_t* column, size_t row, const text_t* text, bint there) except -1:
    if there:
        put_text(&column.data, text.at, text.n)
    column.offsets[row + 1] = fit_i32(column.data.used)
    return 0


@cython.final
cdef class Columns:
    """Machine. One batch of rows."""

    def __cinit__(self):
        self.clients = Words()
        self.topics = Words()
        self.exchanges = Words()
        self.batch = 1
        self.all = 0xFFFFFFFF
        self.enlarge(ROOM_MIN)
        self.properties.offsets[0] = self.details.offsets[0] = self.payloads.offsets[0] = 0

    def __dealloc__(self):
        cdef void** arrays[ARRAYS]
        cdef int i
        self.arrays(arrays)
        for i in range(ARRAYS):
            free(arrays[i][0])
        room_free(&self.properties.data)
        room_free(&self.details.data)
        room_free(&self.payloads.data)

    cdef void arrays(self, void*** out) noexcept:
        """The address of each array: first those with 8-byte elements, then 4, then 1."""
        cdef void*** one = [
            <void**>&self.times, <void**>&self.connections, <void**>&self.packet_ids, <void**>&self.digests,
            <void**>&self.sizes, <void**>&self.bytes, <void**>&self.answers, <void**>&self.latencies,
            <void**>&self.has, <void**>&self.kinds, <void**>&self.client_ids, <void**>&self.topic_names,
            <void**>&self.exchange_names, <void**>&self.channels, <void**>&self.reasons,
            <void**>&self.properties.offsets, <void**>&self.details.offsets, <void**>&self.payloads.offsets,
            <void**>&self.protocols, <void**>&self.versions, <void**>&self.directions, <void**>&self.qoses,
            <void**>&self.retains, <void**>&self.dups]
        memcpy(out, one, ARRAYS * sizeof(void**))

    cdef int enlarge(self, size_t room) except -1:
        cdef void** arrays[ARRAYS]
        cdef int i
        cdef size_t size
        cdef void* larger
        self.arrays(arrays)
        for i in range(ARRAYS):
            size = 8 if i < LONGS else 4 if i < LONGS + INTS else 1
            larger = realloc(arrays[i][0], (room + 1) * size)
            if larger == NULL:
                raise MemoryError()
            arrays[i][0] = larger
        self.room = room
        return 0

    cdef int64_t add(self, const row_t* row) except -1:
        cdef size_t i = self.rows
        if i == self.room:
            self.enlarge(self.room * 2)
        keep_text(&self.properties, i, &row.properties, row.has & HAS_PROPERTIES)
        keep_text(&self.details, i, &row.detail, row.has & HAS_DETAIL)
        keep_text(&self.payloads, i, &row.payload, row.has & HAS_PAYLOAD)
        self.has[i] = row.has
        self.any |= row.has
        self.all &= row.has
        self.times[i] = row.time
        self.connections[i] = row.connection
        self.packet_ids[i] = row.packet_id
        self.digests[i] = row.digest
        self.sizes[i] = row.size
        self.bytes[i] = row.bytes
        self.answers[i] = row.answers
        self.latencies[i] = row.latency
        self.kinds[i] = row.kind
        self.client_ids[i] = row.client
        self.topic_names[i] = row.topic
        self.exchange_names[i] = row.exchange
        self.channels[i] = row.channel
        self.reasons[i] = row.reason
        self.protocols[i] = row.protocol
        self.versions[i] = row.version
        self.directions[i] = row.direction
        self.qoses[i] = row.qos
        self.retains[i] = row.retain
        self.dups[i] = row.dup
        self.rows = i + 1
        return self.first + <int64_t>i

    cdef size_t held(self) noexcept:
        return (self.properties.data.used + self.details.data.used + self.payloads.data.used
                + self.clients.data.used + self.topics.data.used + self.exchanges.data.used)

    cdef bytes validity(self, uint32_t bit):
        """Arrow's validity bitmap of a column; None: all rows have a value."""
        cdef size_t i
        cdef uint8_t* out
        if self.all & bit:
            return None
        packed = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>((self.rows + 7) // 8))
        out = <uint8_t*>PyBytes_AS_STRING(packed)
        memset(out, 0, (self.rows + 7) // 8)
        for i in range(self.rows):
            out[i >> 3] |= <uint8_t>(((self.has[i] & bit) != 0) << (i & 7))
        return packed

    cdef tuple numbers(self, uint32_t bit, const void* values, size_t size):
        if not self.any & bit:
            return None
        return self.validity(bit), copied(values, self.rows * size)

    cdef tuple flags(self, uint32_t bit, const int8_t* values):
        cdef size_t i
        cdef uint8_t* out
        if not self.any & bit:
            return None
        packed = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>((self.rows + 7) // 8))
        out = <uint8_t*>PyBytes_AS_STRING(packed)
        memset(out, 0, (self.rows + 7) // 8)
        for i in range(self.rows):
            out[i >> 3] |= <uint8_t>((values[i] != 0) << (i & 7))
        return self.validity(bit), packed

    cdef tuple strings(self, uint32_t bit, strings_t* column):
        if not self.any & bit:
            return None
        return (self.validity(bit), copied(column.offsets, (self.rows + 1) * sizeof(int32_t)),
                copied(column.data.data, column.data.used))

    cdef tuple words(self, uint32_t bit, const int32_t* values, Words words):
        if bit and not self.any & bit:
            return None
        return (self.validity(bit) if bit else None, copied(values, self.rows * sizeof(int32_t)), *words.taken())

    cdef tuple few(self, uint32_t bit, const int8_t* values, Words words):
        """Index and words of a column whose values are small integers."""
        cdef size_t i
        cdef int32_t* out
        if not self.any & bit:
            return None
        indices = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(self.rows * sizeof(int32_t)))
        out = <int32_t*>PyBytes_AS_STRING(indices)
        for i in range(self.rows):
            out[i] = values[i]
        return (self.validity(bit), indices, *words.taken())

    cdef bytes numbered(self):
        cdef size_t i
        seqs = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(self.rows * sizeof(int64_t)))
        cdef int64_t* out = <int64_t*>PyBytes_AS_STRING(seqs)
        for i in range(self.rows):
            out[i] = self.first + <int64_t>i
        return seqs

    cdef dict taken(self):
        cdef size_t rows = self.rows
        columns = {
            "seq": (None, self.numbered()),
            "time": (None, copied(self.times, rows * 8)),
            "connection": (None, copied(self.connections, rows * 8)),
            "client_id": self.words(HAS_CLIENT, self.client_ids, self.clients),
            "protocol": self.few(HAS_PROTOCOL, self.protocols, PROTOCOLS),
            "version": self.numbers(HAS_VERSION, self.versions, 1),
            "direction": self.few(HAS_DIRECTION, self.directions, WAYS),
            "kind": self.words(0, self.kinds, KINDS),
            "channel": self.numbers(HAS_CHANNEL, self.channels, 4),
            "packet_id": self.numbers(HAS_PACKET_ID, self.packet_ids, 8),
            "topic": self.words(HAS_TOPIC, self.topic_names, self.topics),
            "exchange": self.words(HAS_EXCHANGE, self.exchange_names, self.exchanges),
            "qos": self.numbers(HAS_QOS, self.qoses, 1),
            "retain": self.flags(HAS_RETAIN, self.retains),
            "dup": self.flags(HAS_DUP, self.dups),
            "reason": self.numbers(HAS_REASON, self.reasons, 4),
            "properties": self.strings(HAS_PROPERTIES, &self.properties),
            "detail": self.strings(HAS_DETAIL, &self.details),
            "payload": self.strings(HAS_PAYLOAD, &self.payloads),
            "digest": self.numbers(HAS_DIGEST, self.digests, 8),
            "size": self.numbers(HAS_SIZE, self.sizes, 8),
            "bytes": self.numbers(HAS_BYTES, self.bytes, 8),
            "answers": self.numbers(HAS_ANSWERS, self.answers, 8),
            "ack_latency": self.numbers(HAS_LATENCY, self.latencies, 8),
        }
        self.begin()
        return columns

    cdef void begin(self) noexcept:
        self.first += <int64_t>self.rows
        self.rows = 0
        self.any = 0
        self.all = 0xFFFFFFFF
        self.batch += 1
        self.properties.data.used = self.details.data.used = self.payloads.data.used = 0
        self.clients.clear()
        self.topics.clear()
        self.exchanges.clear()


cdef list KIND_NAMES = kind_names()
cdef Words KINDS = words_of(KIND_NAMES)
cdef Words PROTOCOLS = words_of(["mqtt", "amqp091"])
cdef Words WAYS = words_of(["in", "out"])
