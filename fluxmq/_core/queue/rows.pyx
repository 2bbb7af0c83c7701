# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Converts messages of a log, as in chunks, segments and journal records (queue/log.pxd), to columns, and extracts such
messages from journal batches. For the data source, which reads queues of millions of messages without a broker.

A column consists of buffers in Arrow's layout: validity bits, offsets (i32), values. Nothing here imports Arrow.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset, strlen

from fluxmq._core.disk.journal_format cimport journal_next_record
from fluxmq._core.disk.record_kinds cimport (
    RECORD_APPEND, RECORD_NAMESPACE, RECORD_QUEUE, RECORD_SETTLE, RECORD_TRIM,
)
from fluxmq._core.envelope.envelope cimport (
    FORMAT_NAMES, KEY_CONTENT_TYPE, KEY_HEADER, KEY_PRIORITY, TOPIC_ROOM, field_t, fields_of, fields_t, next_field,
    read_topic,
)
from fluxmq._core.memory.message cimport FORMAT_LAST, body_t
from fluxmq._core.queue.log cimport record_t
from fluxmq._core.wire.primitives cimport peek_u64
from fluxmq._core.wire.sizes cimport fit_i32
from fluxmq._core.wire.text cimport utf8_valid

from fluxmq._core.errors import CorruptError, UsageError

__all__ = ["Rows", "appends_of", "scan_batch"]

cdef enum:
    NUMBER_BYTES = 24
    HEAD = 48                   # of a message
    ROWS_MAX = 32768            # of a batch, with about BATCH_BYTES of messages, because
    BATCH_BYTES = 8 << 20       # offsets of every column are i32
    COLUMN_BYTES_MAX = 1 << 30  # of one column between two take()

cdef int64_t TIME_LAST = 253402300799999    # ms: the end of the year 9999, the last one that Python's datetime has

cdef struct buffer_t:
    uint8_t* data
    size_t used
    size_t room

cdef struct text_t:             # a column of bytes or text
    buffer_t ends               # i32 each, without the leading 0
    buffer_t data
    buffer_t valid              # a byte each: 1 there is one, 0 null

cdef struct map_t:              # text → text, any number per row
    buffer_t ends               # entries up to and with this row, i32 each
    text_t names
    text_t values


cdef uint8_t* room(buffer_t* buffer, size_t more) except NULL:
    """Returns where `more` bytes may be written; the caller updates `used`."""
    cdef size_t wanted = buffer.used + more
    cdef uint8_t* moved
    if wanted > buffer.room or buffer.data == NULL:
        wanted = max(wanted, 2 * buffer.room, <size_t>256)
        moved = <uint8_t*>realloc(buffer.data, wanted)
        if moved == NULL:
            raise MemoryError()
        buffer.data = moved
        buffer.room = wanted
    return buffer.data + buffer.used


cdef inline int put(buffer_t* buffer, const void* data, size_t size) except -1:
    memcpy(room(buffer, size), data, size)
    buffer.used += size
    return 0


cdef inline int put_i64(buffer_t* buffer, int64_t value) except -1:
    return put(buffer, &value, 8)


cdef inline int put_text(text_t* text, const uint8_t* data, size_t size) except -1:
    cdef int32_t end
    cdef uint8_t there = 1
    put(&text.data, data, size)
    end = fit_i32(text.data.used)
    put(&text.ends, &end, 4)
    return put(&text.valid, &there, 1)


cdef inline int put_null(text_t* text) except -1:
    cdef int32_t end = fit_i32(text.data.used)
    cdef uint8_t there = 0
    put(&text.ends, &end, 4)
    return put(&text.valid, &there, 1)


cdef inline int put_entry(map_t* map, const uint8_t* name, size_t name_size, const uint8_t* value,
                          size_t size) except -1:
    put_text(&map.names, name, name_size)
    return put_text(&map.values, value, size)


cdef inline int end_row(map_t* map) except -1:
    cdef int32_t count = fit_i32(map.names.ends.used // 4)
    return put(&map.ends, &count, 4)


cdef bint has_entry(map_t* map, size_t since, const uint8_t* name, size_t size) noexcept:
    """Whether the row that began with entry `since` has this name already."""
    cdef size_t count = map.names.ends.used // 4
    cdef const int32_t* ends = <const int32_t*>map.names.ends.data
    cdef size_t i
    cdef int32_t begin
    for i in range(since, count):
        begin = ends[i - 1] if i else 0
        if <size_t>(ends[i] - begin) == size and memcmp(map.names.data.data + begin, name, size) == 0:
            return 1
    return 0


cdef void forget(buffer_t* buffer) noexcept:
    free(buffer.data)
    buffer.data = NULL
    buffer.used = buffer.room = 0


cdef void forget_text(text_t* text) noexcept:
    forget(&text.ends)
    forget(&text.data)
    forget(&text.valid)


cdef void forget_map(map_t* map) noexcept:
    forget(&map.ends)
    forget_text(&map.names)
    forget_text(&map.values)


cdef bytes values_of(buffer_t* buffer):
    made = PyBytes_FromStringAndSize(<const char*>buffer.data, buffer.used)
    buffer.used = 0
    return made


cdef bytes ends_of(buffer_t* buffer):
    """Offsets in Arrow's format, from 0 on."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, buffer.used + 4)
    cdef char* to = PyBytes_AS_STRING(made)
    cdef int32_t zero = 0
    memcpy(to, &zero, 4)
    if buffer.used:         # no memory is allocated before the first row
        memcpy(to + 4, buffer.data, buffer.used)
    buffer.used = 0
    return made


cdef bytes bits_of(buffer_t* buffer):
    """Validity bits, least significant first; b"" if nothing is null."""
    cdef size_t count = buffer.used
    cdef size_t i
    cdef bytearray bits
    buffer.used = 0
    for i in range(count):
        if buffer.data[i] == 0:
            break
    else:
        return b""
    bits = bytearray((count + 7) // 8)
    for i in range(count):
        if buffer.data[i]:
            bits[i >> 3] |= 1 << (i & 7)
    return bytes(bits)


cdef tuple text_of(text_t* text):
    return bits_of(&text.valid), ends_of(&text.ends), values_of(&text.data)


cdef tuple map_of(map_t* map):
    return ends_of(&map.ends), text_of(&map.names), text_of(&map.values)


cdef bytes shown(const uint8_t* text, size_t size):
    return (<const char*>text)[:size].decode("utf-8", "backslashreplace").encode()


cdef void body_of(const record_t* record, const uint8_t* at, body_t* body) noexcept:
    memset(body, 0, sizeof(body_t))
    body.format = record.qos >> 4
    body.topic = at
    body.topic_length = record.topic_length
    body.properties = at + record.topic_length
    body.properties_length = record.properties_length
    body.payload = body.properties + record.properties_length
    body.payload_length = record.payload_length


@cython.final
cdef class Rows:
    """Machine. Converts messages to columns.

    first, end: offsets to take, unsigned as in a log. topics: topics to take, None: all; prefix: beginning of topics to
    take; time_min, time_max: ms, inclusive; excluded: ranges (first, end) of offsets to leave out, ascending. read,
    taken: number of messages examined, and of those that became rows; next: the offset behind the last one examined.
    """

    cdef readonly uint64_t read
    cdef readonly uint64_t taken
    cdef readonly uint64_t next
    cdef readonly uint64_t lowest       # offset of the first message examined; all ones: none yet
    cdef readonly uint32_t count        # rows since the last take()
    cdef size_t held                    # bytes of the messages of these rows
    cdef uint64_t first
    cdef uint64_t end
    cdef int64_t time_min
    cdef int64_t time_max
    cdef frozenset topics
    cdef bytes prefix
    cdef list excluded                  # (first, end) of offsets to leave out, ascending
    cdef Py_ssize_t excluded_at
    cdef buffer_t offset
    cdef buffer_t time
    cdef buffer_t expiry
    cdef buffer_t expiry_valid
    cdef buffer_t priority
    cdef buffer_t qos
    cdef text_t topic
    cdef text_t payload
    cdef text_t content_type
    cdef text_t key
    cdef text_t format
    cdef map_t properties
    cdef map_t headers
    cdef bytes name                     # name of the current field, if it had to be converted
    cdef bytes value

    def __cinit__(self, uint64_t first, uint64_t end, *, topics=None, bytes prefix=b"",
                  int64_t time_min=-(1 << 62), int64_t time_max=1 << 62, excluded=()):
        self.first, self.end, self.next = first, end, first
        self.time_min, self.time_max = time_min, time_max
        self.topics = None if topics is None else frozenset(topics)
        self.prefix = prefix
        self.excluded = list(excluded)
        self.lowest = <uint64_t>0xFFFFFFFFFFFFFFFF

    def __dealloc__(self):
        forget(&self.offset)
        forget(&self.time)
        forget(&self.expiry)
        forget(&self.expiry_valid)
        forget(&self.priority)
        forget(&self.qos)
        forget_text(&self.topic)
        forget_text(&self.payload)
        forget_text(&self.content_type)
        forget_text(&self.key)
        forget_text(&self.format)
        forget_map(&self.properties)
        forget_map(&self.headers)

    def add(self, const uint8_t[::1] raw not None, size_t at=0) -> int:
        """Takes the selected messages from a run of ascending ones, from byte `at` on, except those already examined.
        Stops when take() is due (ROWS_MAX, BATCH_BYTES), or behind the last selected offset.

        Returns the byte to continue from, at the end the length. Raises CorruptError if the bytes are no messages.
        """
        cdef size_t total = <size_t>raw.shape[0]
        cdef record_t record
        cdef body_t body
        while at < total and self.count < ROWS_MAX and self.held < BATCH_BYTES:
            if total - at < HEAD:
                raise CorruptError(f"a run of {total} bytes does not divide into messages")
            memcpy(&record, &raw[at], HEAD)
            if record.size < HEAD or record.size > total - at or <uint64_t>HEAD + record.topic_length + \
                    record.properties_length + record.payload_length > record.size:
                raise CorruptError(f"a run of {total} bytes does not divide into messages")
            if record.qos >> 4 > FORMAT_LAST:
                raise CorruptError(f"a message has format {record.qos >> 4}, which this version does not know")
            body_of(&record, &raw[at] + HEAD, &body)
            at += record.size
            if record.offset < self.next:
                continue
            if record.offset >= self.end:
                self.next = self.end
                return total
            self.next = record.offset + 1
            if self.lowest == <uint64_t>0xFFFFFFFFFFFFFFFF:
                self.lowest = record.offset
            self.read += 1
            if self.wanted(&record, &body):
                self.row(&record, &body)
                self.taken += 1
                self.count += 1
                self.held += record.size
        return at

    @property
    def full(self) -> bool:
        """Whether take() is due."""
        return self.count >= ROWS_MAX or self.held >= BATCH_BYTES

    cdef bint wanted(self, const record_t* record, const body_t* message) except -1:
        cdef body_t body = message[0]
        cdef uint8_t[TOPIC_ROOM] room
        cdef Py_ssize_t prefix = len(self.prefix)
        if not self.time_min <= record.time_ms <= self.time_max:
            return 0
        while self.excluded_at < len(self.excluded) and self.excluded[self.excluded_at][1] <= record.offset:
            self.excluded_at += 1
        if self.excluded_at < len(self.excluded) and self.excluded[self.excluded_at][0] <= record.offset:
            return 0
        if self.topics is None and prefix == 0:
            return 1
        read_topic(&body, room)
        if body.topic_length < prefix or memcmp(body.topic, <const char*>self.prefix, prefix) != 0:
            return 0
        return self.topics is None or (<const char*>body.topic)[:body.topic_length] in self.topics

    cdef int row(self, const record_t* record, const body_t* body) except -1:
        cdef body_t named = body[0]
        cdef uint8_t[TOPIC_ROOM] room
        cdef uint8_t small = record.qos & 15
        cdef int16_t priority = record.priority
        cdef uint8_t there = record.expires_at != 0
        if self.held + record.size > COLUMN_BYTES_MAX:
            raise UsageError("take() what is there before more is added")
        put_i64(&self.offset, <int64_t>record.offset)
        put_i64(&self.time, record.time_ms * 1000)
        put_i64(&self.expiry, min(record.expires_at, TIME_LAST) * 1000)
        put(&self.expiry_valid, &there, 1)
        put_text(&self.payload, body.payload, body.payload_length)
        put(&self.qos, &small, 1)
        read_topic(&named, room)
        put_text(&self.topic, named.topic, named.topic_length)
        self.fields(body, &priority)
        put_text(&self.format, <const uint8_t*>FORMAT_NAMES[body.format], strlen(FORMAT_NAMES[body.format]))
        put(&self.priority, &priority, 2)
        end_row(&self.properties)
        return end_row(&self.headers)

    cdef int fields(self, const body_t* body, int16_t* priority) except -1:
        """Puts properties and headers into columns. priority: set from a property."""
        cdef fields_t fields
        cdef field_t field
        cdef char[NUMBER_BYTES] digits
        cdef size_t since = self.headers.names.ends.used // 4
        cdef bint keyed = 0
        cdef bint typed = 0
        fields_of(body, &fields)
        while next_field(&fields, &field):
            if field.is_number:
                snprintf(digits, NUMBER_BYTES, b"%llu", <unsigned long long>field.number)
                field.value = <const uint8_t*>digits
                field.length = <uint32_t>strlen(digits)
                if field.key == KEY_PRIORITY:
                    priority[0] = <int16_t>min(field.number, <uint64_t>255)
            elif not field.is_text:
                self.readable(&field)
            if field.key == KEY_CONTENT_TYPE:
                if not typed:
                    put_text(&self.content_type, field.value, field.length)
                typed = 1
            elif field.key != KEY_HEADER:
                put_entry(&self.properties, field.name, field.name_length, field.value, field.length)
            else:
                if not keyed and field.name_length == 13 and memcmp(field.name, b"partition-key", 13) == 0:
                    put_text(&self.key, field.value, field.length)
                    keyed = 1
                if not has_entry(&self.headers, since, field.name, field.name_length):
                    put_entry(&self.headers, field.name, field.name_length, field.value, field.length)
        if fields.malformed == -2:
            raise CorruptError("a property of a message ends behind all of them")
        if fields.malformed >= 0:
            raise CorruptError(f"a message has a property 0x{fields.malformed:02x}, which none in a queue has")
        if not typed:
            put_null(&self.content_type)
        if not keyed:
            put_null(&self.key)
        return 0

    cdef int readable(self, field_t* field) except -1:
        """Replaces invalid UTF-8 by a readable form."""
        if not utf8_valid(field.name, field.name_length):
            self.name = shown(field.name, field.name_length)
            field.name = <const uint8_t*><const char*>self.name
            field.name_length = <uint32_t>len(self.name)
        if not utf8_valid(field.value, field.length):
            self.value = shown(field.value, field.length)
            field.value = <const uint8_t*><const char*>self.value
            field.length = <uint32_t>len(self.value)
        return 0

    def take(self) -> dict:
        """Returns the rows since the last take(), by column. Numbers: (validity, values); text and bytes: (validity,
        ends, data); maps: (ends, names, values), both as text. Empty validity: nothing is null."""
        made = {
            "offset": (b"", values_of(&self.offset)), "time": (b"", values_of(&self.time)),
            "topic": text_of(&self.topic), "payload": text_of(&self.payload),
            "content_type": text_of(&self.content_type), "key": text_of(&self.key),
            "priority": (b"", values_of(&self.priority)), "qos": (b"", values_of(&self.qos)),
            "expiry": (bits_of(&self.expiry_valid), values_of(&self.expiry)),
            "properties": map_of(&self.properties), "headers": map_of(&self.headers),
            "format": text_of(&self.format)}
        self.count = 0
        self.held = 0
        return made


def appends_of(const uint8_t[::1] batch not None, uint64_t log, uint64_t first, uint64_t end, bytearray into not None):
    """Appends to `into` the messages in a journal batch for `log` with offsets in [first, end). Returns how many.
    Raises CorruptError if the bytes are no records."""
    cdef const uint8_t* at
    cdef const uint8_t* stop
    cdef const uint8_t* body = NULL
    cdef uint8_t kind = 0
    cdef uint32_t length = 0
    cdef uint64_t number
    cdef record_t record
    cdef int state
    cdef uint64_t found = 0
    if batch.shape[0] == 0:
        return 0
    at = &batch[0]
    stop = at + batch.shape[0]
    while True:
        state = journal_next_record(&at, stop, &kind, &body, &length)
        if state == 0:
            return found
        if state < 0:
            raise CorruptError("a journal batch does not divide into records")
        if kind != RECORD_APPEND or length < 8 + HEAD:
            continue
        number = peek_u64(body)
        memcpy(&record, body + 8, HEAD)
        if number == log and first <= record.offset < end:
            into += (<const char*>body + 8)[:length - 8]
            found += 1


def scan_batch(const uint8_t[::1] batch not None, dict tally not None):
    """The records of a journal batch about queues, except messages: [(kind, body)] of NAMESPACE, SETTLE and QUEUE to
    TRIM, in order. Its messages are added to `tally`: {log: [first offset, last offset, bytes]}. Raises
    CorruptError."""
    cdef const uint8_t* at
    cdef const uint8_t* stop
    cdef const uint8_t* body = NULL
    cdef uint8_t kind = 0
    cdef uint32_t length = 0
    cdef uint64_t number
    cdef record_t record
    cdef int state
    cdef list found = []
    cdef list known
    if batch.shape[0] == 0:
        return found
    at = &batch[0]
    stop = at + batch.shape[0]
    while True:
        state = journal_next_record(&at, stop, &kind, &body, &length)
        if state == 0:
            return found
        if state < 0:
            raise CorruptError("a journal batch does not divide into records")
        if kind == RECORD_NAMESPACE or kind == RECORD_SETTLE or RECORD_QUEUE <= kind <= RECORD_TRIM:
            found.append((kind, (<const char*>body)[:length]))
        elif kind == RECORD_APPEND and length >= 8 + HEAD:
            number = peek_u64(body)
            memcpy(&record, body + 8, HEAD)
            known = <list>tally.get(number)
            if known is None:
                tally[number] = [record.offset, record.offset, record.size]
            else:
                known[1] = record.offset
                known[2] += record.size
