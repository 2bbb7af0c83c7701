# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machines. Exchanges, bindings and the cache of routes; see exchange/exchange.pxd."""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy

from fluxmq._core.errors import UsageError
from fluxmq._core.exchange.headers cimport (
    MATCH_ALL, header_hash, headers_free, headers_match, headers_pattern, headers_read,
)
from fluxmq._core.exchange.table cimport (
    KEY_BYTES_MAX, etable_add, etable_find, etable_free, etable_init, etable_match, etable_pattern, etable_prune,
    etable_remove, etable_word,
)
from fluxmq._core.wire.hash cimport hash_bytes, hash_word

__all__ = ["TYPES", "Binding", "Destination", "Exchange", "Exchanges", "QueueEnd", "Route"]

TYPES = {b"direct": EXCHANGE_DIRECT, b"fanout": EXCHANGE_FANOUT, b"topic": EXCHANGE_TOPIC,
         b"headers": EXCHANGE_HEADERS}

cdef enum:
    WAYS = 4
    REMOVED_MAX = 1024          # queues that stale routes may keep from being freed


@cython.final
cdef class Route:
    """The result of routing. It is the same object until `generation` changes, unless headers decided."""


cdef class Destination:
    """A destination of bindings: a queue, or another exchange."""


@cython.final
cdef class QueueEnd(Destination):
    """A queue as a destination."""

    def __cinit__(self, bytes name not None, object queue, bint durable):
        self.name = name
        self.queue = queue
        self.durable = durable


@cython.final
cdef class Exchange(Destination):
    """Made by Exchanges.declare."""

    def __cinit__(self, bytes name not None, uint8_t kind, uint64_t number, uint64_t seed):
        self.name = name
        self.kind = kind
        self.number = number
        self.is_exchange = True
        self.is_default = not name
        self.inbound = set()
        self.outbound = {}
        self.seed = seed
        etable_init(&self.table, seed)

    def __dealloc__(self):
        etable_free(&self.table)

    cdef int add(self, Binding binding) except -1:
        """Adds a binding to the index, completely or not at all."""
        cdef const uint8_t* key = <const uint8_t*><const char*>binding.key
        cdef uint32_t length = <uint32_t>len(binding.key)
        cdef enode_t* node = &self.table.root
        if self.kind == EXCHANGE_HEADERS:
            return add_fields(self, binding)
        if self.kind == EXCHANGE_DIRECT:
            node = etable_word(&self.table, key, length)
        elif self.kind == EXCHANGE_TOPIC:
            node = etable_pattern(&self.table, key, length)
        return add_at(self, binding, node, 1)

    cdef int drop(self, Binding binding) except -1:
        cdef uint32_t i
        for i in range(binding.places_count):
            etable_remove(&self.table, &binding.places[i])
        binding.places_count = 0
        return 0


cdef int add_at(Exchange self, Binding binding, enode_t* node, uint32_t places) except -1:
    """places: number of places of the binding."""
    try:
        if binding.places == NULL:
            binding.places = <place_t*>calloc(places, sizeof(place_t))
            if binding.places == NULL:
                raise MemoryError()
        etable_add(node, <void*>binding.destination, <void*>binding, &binding.places[binding.places_count])
    except BaseException:
        etable_prune(&self.table, node)
        raise
    binding.places_count += 1
    return 0


cdef enode_t* field_node(Exchange self, uint64_t hash) except NULL:
    return etable_word(&self.table, <const uint8_t*>&hash, 8)


cdef int add_fields(Exchange self, Binding binding) except -1:
    """A binding with `any` is indexed under each of its fields; one with `all` under one of them: that with the fewest
    other bindings. One without fields matches everything, or with `any` nothing."""
    cdef headers_t* pattern = &binding.pattern
    cdef enode_t* node
    cdef enode_t* best = NULL
    cdef uint32_t i
    cdef bint presence
    headers_read(pattern, <const uint8_t*><const char*>binding.arguments, <uint32_t>len(binding.arguments))
    binding.how = headers_pattern(pattern)
    if pattern.count == 0:
        if binding.how & MATCH_ALL:
            add_at(self, binding, &self.table.root, 1)
        return 0
    try:
        for i in range(pattern.count):
            presence = pattern.items[i].kind == c"V"
            node = field_node(self, header_hash(&pattern.items[i], presence, self.seed))
            if not binding.how & MATCH_ALL:
                add_at(self, binding, node, pattern.count)
            elif best == NULL or node.count < best.count:
                if best != NULL:
                    etable_prune(&self.table, best)
                best = node
            elif node != best:
                etable_prune(&self.table, node)
        if best != NULL:
            node, best = best, NULL
            add_at(self, binding, node, 1)
    except BaseException:
        if best != NULL:
            etable_prune(&self.table, best)
        self.drop(binding)
        raise
    return 0


@cython.final
cdef class Binding:
    """One binding; equal to another with the same source, destination, key and arguments."""

    def __cinit__(self, Exchange source not None, Destination destination not None, bytes key not None,
                  bytes arguments not None, uint64_t number):
        self.number = number
        self.source = source
        self.destination = destination
        self.key = key
        self.arguments = arguments
        self.hash = hash((id(source), id(destination), key, arguments))

    def __dealloc__(self):
        free(self.places)
        headers_free(&self.pattern)

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        cdef Binding it
        if not isinstance(other, Binding):
            return NotImplemented
        it = <Binding>other
        return (self.source is it.source and self.destination is it.destination and self.key == it.key
                and self.arguments == it.arguments)


cdef int by_order(const void* a, const void* b) noexcept nogil:
    cdef uint64_t x = (<const met_t*>a).order
    cdef uint64_t y = (<const met_t*>b).order
    return (x > y) - (x < y)


# Entries point to what `cached` owns, so the collector must not clear that first; queues break the cycle.
@cython.no_gc_clear
@cython.final
cdef class Exchanges:
    """Machine. The exchanges and queues of one virtual host.

    entries: size of the cache of routes, rounded up to a power of two. seed: secret, for the hashes.
    """

    def __cinit__(self, uint32_t entries=4096, uint64_t seed=0):
        cdef uint64_t sets = 16
        while sets * WAYS < entries:
            sets *= 2
        self.seed = seed
        self.generation = 1
        self.exchanges = {}
        self.queues = {}
        self.work = []
        self.cached = set()
        self.sets_mask = sets - 1
        self.sets = <entry_t**>calloc(sets * WAYS, sizeof(entry_t*))
        if self.sets == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef uint64_t i
        if self.sets != NULL:
            for i in range((self.sets_mask + 1) * WAYS):
                free(self.sets[i])
            free(self.sets)
        free(self.met)
        headers_free(&self.headers)

    # ---- the cold verbs ----

    def declare(self, bytes name not None, bytes type not None, *, bint durable=False, bint auto_delete=False,
                bint internal=False, bytes alternate=None, uint64_t number=0, bint mqtt=False):
        """Makes an exchange. mqtt: it is connected with MQTT topics."""
        cdef Exchange made
        if name in self.exchanges:
            raise UsageError(f"exchange {name!r} is there already")
        made = Exchange(name, TYPES[type], number, self.seed)
        made.durable = durable
        made.auto_delete = auto_delete
        made.internal = internal
        made.alternate = alternate
        made.is_mqtt = mqtt
        if mqtt:
            self.mqtt = made
        self.order_last += 1
        made.order = self.order_last
        self.exchanges[name] = made
        self.generation += 1
        return made

    def delete(self, bytes name not None):
        """Deletes an exchange; returns its bindings, which are removed too."""
        cdef Exchange exchange = self.exchanges.pop(name)
        cdef list gone = list(exchange.outbound)
        if exchange is self.mqtt:
            self.mqtt = None
        for binding in gone:
            self.drop(binding)
        self.generation += 1
        return gone + self.drop_inbound(exchange)

    def add_queue(self, bytes name not None, object queue, bint durable=True):
        """Adds a queue as a destination. durable: it survives a restart, and so may its bindings."""
        cdef QueueEnd end
        if name in self.queues:
            raise UsageError(f"queue {name!r} is there already")
        end = QueueEnd(name, queue, durable)
        self.order_last += 1
        end.order = self.order_last
        self.queues[name] = end
        self.generation += 1
        return end

    def remove_queue(self, bytes name not None):
        """Removes a queue; returns its bindings, which are removed too."""
        cdef QueueEnd end = self.queues.pop(name)
        self.generation += 1
        self.removed += 1
        if self.removed >= REMOVED_MAX:
            self.let_go()
        return self.drop_inbound(end)

    cpdef int let_go(self) except -1:
        """Drops stale routes, which keep deleted queues alive."""
        cdef uint64_t i
        self.removed = 0
        for i in range((self.sets_mask + 1) * WAYS):
            if self.sets[i] != NULL and self.sets[i].generation != self.generation:
                self.drop_entry(&self.sets[i])
        return 0

    cdef int drop_entry(self, entry_t** way) except -1:
        cdef entry_t* entry = way[0]
        way[0] = NULL
        self.cached.discard(<Route>entry.route)
        free(entry)
        return 0

    def drop_inbound(self, Destination destination not None):
        if destination.inbound is None:
            return []
        gone = list(destination.inbound)
        for binding in gone:
            self.drop(binding)
        return gone

    def bind(self, Exchange source not None, Destination destination not None, bytes key not None,
             bytes arguments=b"", uint64_t number=0):
        """Makes a binding, or returns None if an equal one exists. arguments: from sorted_table."""
        cdef Binding binding = Binding(source, destination, key, arguments, number)
        if len(key) > KEY_BYTES_MAX:
            raise UsageError(f"a routing key of {len(key)} bytes")
        if binding in source.outbound:
            return None
        source.add(binding)
        source.outbound[binding] = binding
        if destination.inbound is None:
            destination.inbound = set()
        destination.inbound.add(binding)
        self.generation += 1
        if source.is_mqtt and self.on_mqtt is not None:
            self.on_mqtt(binding, True)
        return binding

    def unbind(self, Exchange source not None, Destination destination not None, bytes key not None,
               bytes arguments=b""):
        """Removes a binding and returns it; None if there is no equal one."""
        binding = source.outbound.get(Binding(source, destination, key, arguments, 0))
        if binding is not None:
            self.drop(binding)
        return binding

    def drop(self, Binding binding not None):
        """Removes this binding."""
        cdef Exchange source = binding.source
        if source.outbound.get(binding) is not binding:
            raise UsageError("no such binding")
        # From the index first, which has pointers to objects that the others keep alive.
        source.drop(binding)
        del source.outbound[binding]
        binding.destination.inbound.discard(binding)
        self.generation += 1
        if source.is_mqtt and self.on_mqtt is not None:
            self.on_mqtt(binding, False)

    # ---- the hot verb ----

    def lookup(self, bytes name not None, bytes key not None, bytes headers=b""):
        """find, for Python."""
        return self.find(<const uint8_t*><const char*>name, <uint32_t>len(name),
                         <const uint8_t*><const char*>key, <uint32_t>len(key),
                         <const uint8_t*><const char*>headers, <uint32_t>len(headers))

    cdef Route find(self, const uint8_t* name, uint32_t n, const uint8_t* key, uint32_t key_length,
                    const uint8_t* headers, uint32_t headers_length):
        cdef uint64_t hash = hash_word(hash_bytes(name, n, self.seed), hash_bytes(key, key_length, self.seed))
        cdef entry_t** ways = self.sets + (hash & self.sets_mask) * WAYS
        cdef entry_t** oldest = ways
        cdef entry_t* entry
        cdef Exchange exchange
        cdef Route route
        cdef int i
        self.tick += 1
        for i in range(WAYS):
            entry = ways[i]
            if entry == NULL:
                oldest = &ways[i]
                continue
            if (entry.hash == hash and entry.name_length == n and entry.key_length == key_length
                    and memcmp(<uint8_t*>(entry + 1), name, n) == 0
                    and memcmp(<uint8_t*>(entry + 1) + n, key, key_length) == 0):
                if entry.generation == self.generation:
                    self.hits += 1
                    entry.used = self.tick
                    return <Route>entry.route
                oldest = &ways[i]
                break
            if oldest[0] != NULL and entry.used < oldest[0].used:
                oldest = &ways[i]
        self.misses += 1
        exchange = <Exchange>self.exchanges.get(PyBytes_FromStringAndSize(<const char*>name, n))
        if exchange is None:
            return None
        route = self.walk(exchange, key, key_length, headers, headers_length, None)
        if not route.by_headers:
            self.keep(oldest, hash, name, n, key, key_length, route)
        return route

    def lookup_keys(self, bytes name not None, list keys not None, bytes headers=b""):
        """find_keys, for Python."""
        return self.find_keys(<const uint8_t*><const char*>name, <uint32_t>len(name), keys,
                              <const uint8_t*><const char*>headers, <uint32_t>len(headers))

    cdef Route find_keys(self, const uint8_t* name, uint32_t n, list keys, const uint8_t* headers,
                         uint32_t headers_length):
        cdef Exchange exchange = <Exchange>self.exchanges.get(PyBytes_FromStringAndSize(<const char*>name, n))
        if exchange is None:
            return None
        return self.walk(exchange, NULL, 0, headers, headers_length, keys)

    cdef int keep(self, entry_t** way, uint64_t hash, const uint8_t* name, uint32_t n, const uint8_t* key,
                  uint32_t key_length, Route route) except -1:
        cdef entry_t* entry
        if way[0] != NULL:
            self.drop_entry(way)
        self.cached.add(route)
        entry = <entry_t*>malloc(sizeof(entry_t) + n + key_length)
        if entry == NULL:
            self.cached.discard(route)
            raise MemoryError()
        entry[0] = entry_t(hash, self.generation, self.tick, <PyObject*>route, n, key_length)
        memcpy(<uint8_t*>(entry + 1), name, n)
        memcpy(<uint8_t*>(entry + 1) + n, key, key_length)
        way[0] = entry
        return 0

    cdef Route walk(self, Exchange first, const uint8_t* key, uint32_t key_length, const uint8_t* headers,
                    uint32_t headers_length, list keys):
        """Routes a message published to this exchange. keys: several keys instead of one. Not reentrant: it runs no
        foreign code."""
        cdef Route route = Route.__new__(Route)
        cdef bytes another
        cdef size_t ways
        cdef Exchange exchange, alternate
        cdef size_t at = 0
        self.walks += 1
        self.met_count = 0
        self.headers_known = False
        first.seen = self.walks
        self.work.append(first)
        try:
            while at < <size_t>len(self.work):
                exchange = <Exchange>self.work[at]
                at += 1
                route.mqtt |= exchange.is_mqtt
                route.by_headers |= exchange.kind == EXCHANGE_HEADERS
                ways = 0
                if keys is None:
                    ways = self.visit(exchange, key, key_length, headers, headers_length)
                else:
                    for another in keys:
                        ways += self.visit(exchange, <const uint8_t*><const char*>another, <uint32_t>len(another),
                                           headers, headers_length)
                if ways == 0:
                    # Only if nothing is bound under this key; a matching binding that leads to no queue counts as well.
                    if exchange.alternate is not None:
                        # The default exchange never has an alternate exchange, as in RabbitMQ.
                        alternate = <Exchange>self.exchanges.get(exchange.alternate)
                        if alternate is not None and not alternate.is_default:
                            self.reach(alternate)
        finally:
            self.work.clear()
        route.by_headers |= keys is not None
        route.queues = self.met_queues()
        route.routed = self.met_count > 0
        route.internal = first.internal
        return route

    cdef list met_queues(self):
        cdef list queues = []
        cdef size_t i
        if self.met_count > 1:
            qsort(self.met, self.met_count, sizeof(met_t), by_order)
        for i in range(self.met_count):
            queues.append((<QueueEnd>self.met[i].queue).queue)
        return queues

    cdef size_t visit(self, Exchange exchange, const uint8_t* key, uint32_t key_length, const uint8_t* headers,
                      uint32_t headers_length) except? 0xFFFFFFFF:
        """Visits the matching bindings of an exchange; returns their number."""
        cdef const enode_t* node = NULL
        cdef size_t ways = 0, i
        if exchange.is_default:
            end = self.queues.get(PyBytes_FromStringAndSize(<const char*>key, key_length))
            if end is None:
                return 0
            self.reach(<Destination>end)
            return 1
        if exchange.kind == EXCHANGE_HEADERS:
            return self.visit_headers(exchange, headers, headers_length)
        if exchange.kind == EXCHANGE_TOPIC:
            etable_match(&exchange.table, key, key_length)
            for i in range(exchange.table.now.count):
                ways += self.take(exchange.table.now.items[i])
            return ways
        node = &exchange.table.root
        if exchange.kind == EXCHANGE_DIRECT:
            node = etable_find(&exchange.table, node, key, key_length)
        return self.take(node) if node != NULL else 0

    cdef size_t visit_headers(self, Exchange exchange, const uint8_t* headers, uint32_t length) except? 0xFFFFFFFF:
        cdef size_t ways = self.take(&exchange.table.root)
        cdef const enode_t* node
        cdef Binding binding
        cdef uint64_t hash
        cdef uint32_t i, j
        cdef int presence
        if not self.headers_known:
            headers_read(&self.headers, headers, length)
            self.headers_known = True
        for i in range(self.headers.count):
            for presence in range(2):
                hash = header_hash(&self.headers.items[i], presence, exchange.seed)
                node = etable_find(&exchange.table, &exchange.table.root, <const uint8_t*>&hash, 8)
                if node == NULL:
                    continue
                for j in range(node.count):
                    binding = <Binding>node.items[j].binding
                    if headers_match(&binding.pattern, binding.how, &self.headers):
                        self.reach(<Destination>node.items[j].destination)
                        ways += 1
        return ways

    cdef size_t take(self, const enode_t* node) except? 0xFFFFFFFF:
        """Visits all bindings at this node."""
        cdef uint32_t i
        for i in range(node.count):
            self.reach(<Destination>node.items[i].destination)
        return node.count

    cdef int reach(self, Destination destination) except -1:
        cdef met_t* grown
        if destination.seen == self.walks:
            return 0
        destination.seen = self.walks
        if destination.is_exchange:
            self.work.append(destination)
            return 0
        if self.met_count == self.met_capacity:
            grown = <met_t*>realloc(self.met, (self.met_capacity * 2 + 16) * sizeof(met_t))
            if grown == NULL:
                raise MemoryError()
            self.met = grown
            self.met_capacity = self.met_capacity * 2 + 16
        self.met[self.met_count] = met_t(destination.order, <PyObject*>destination)
        self.met_count += 1
        return 0
