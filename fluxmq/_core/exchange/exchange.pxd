"""Exchanges of one virtual host: their bindings, and the routes of messages.

    Exchanges ── exchanges: name -> Exchange ── its table (exchange/table.pxd): key, pattern or field -> Binding
              └─ queues:    name -> QueueEnd ◄──────────────────────────────────────────────────────┘

A route is found by walking the bindings from exchange to exchange; each exchange is visited once, so cycles end. An
exchange without a matching binding continues with its alternate exchange. The result is a Route. Routes that do not
depend on headers are cached by exchange and key (sets of four, LRU) until `generation` changes; a publisher may cache
one itself and compare the generation. pubsub/routes.pxd says why its cache is another: a common one would compare keys
and free entries through pointers, on each hit.

The cold half, engine/exchanges/, decides what may be declared, bound and deleted; this object applies it.
"""
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.exchange.headers cimport headers_t
from fluxmq._core.exchange.table cimport enode_t, etable_t, item_t, place_t

cdef enum:
    EXCHANGE_DIRECT = 0
    EXCHANGE_FANOUT = 1
    EXCHANGE_TOPIC = 2
    EXCHANGE_HEADERS = 3

cdef struct entry_t:                # a cached route
    uint64_t hash
    uint64_t generation
    uint64_t used
    PyObject* route                 # owned by Exchanges.cached
    uint32_t name_length
    uint32_t key_length             # both names are behind this struct

cdef struct met_t:                  # a queue reached by a walk
    uint64_t order
    PyObject* queue                 # a QueueEnd, borrowed

cdef class Route:
    cdef readonly list queues       # each once, oldest first
    cdef readonly bint mqtt         # includes `amq.topic` of "/": MQTT subscribers may match too
    cdef readonly bint internal     # the named exchange does not accept publishes (403)
    cdef readonly bint routed       # at least one queue matched
    cdef readonly bint by_headers   # depends on headers: valid for this one message

cdef class Destination:
    cdef readonly bytes name
    cdef readonly bint durable
    cdef readonly set inbound       # Binding: those with this destination; None: there never was one
    cdef uint64_t order
    cdef uint64_t seen              # number of the last walk that reached it
    cdef bint is_exchange

cdef class QueueEnd(Destination):
    cdef readonly object queue

cdef class Exchange(Destination):
    cdef public uint64_t number             # 0: no record names it
    cdef readonly uint8_t kind              # EXCHANGE_*
    cdef readonly bint auto_delete
    cdef readonly bint internal
    cdef readonly bint is_default           # the default exchange: the key is the name of a queue
    cdef readonly bint is_mqtt
    cdef readonly bytes alternate           # or None
    cdef readonly dict outbound             # Binding -> itself: those with this source
    cdef public object data                 # owned by the cold half
    cdef etable_t table
    cdef uint64_t seed

    cdef int add(self, Binding binding) except -1
    cdef int drop(self, Binding binding) except -1

cdef class Binding:
    cdef readonly uint64_t number
    cdef readonly Exchange source
    cdef readonly Destination destination
    cdef readonly bytes key
    cdef readonly bytes arguments           # a table in order of its names, without its length
    cdef Py_hash_t hash
    cdef place_t* places                    # of a headers exchange where any field counts, one for each
    cdef uint32_t places_count
    cdef headers_t pattern                  # of a headers exchange; points into `arguments`
    cdef uint8_t how                        # MATCH_*

cdef class Exchanges:
    cdef readonly dict exchanges            # name -> Exchange
    cdef readonly dict queues               # name -> QueueEnd
    cdef readonly Exchange mqtt             # the one with is_mqtt, or None
    cdef public object on_mqtt              # called with (Binding of `mqtt`, added or removed); or None
    cdef readonly uint64_t generation       # changes with every exchange, queue or binding added or removed
    cdef readonly uint64_t hits
    cdef readonly uint64_t misses
    cdef entry_t** sets
    cdef uint64_t sets_mask
    # The routes of `sets`. They refer to queues, which refer to the broker: the garbage collector must see it.
    cdef set cached
    cdef uint64_t tick
    cdef uint64_t seed
    cdef uint64_t walks
    cdef uint64_t order_last
    cdef uint32_t removed                   # queues removed since stale routes were dropped
    cdef met_t* met                         # queues reached by the current walk
    cdef size_t met_count
    cdef size_t met_capacity
    cdef list work                          # Exchange: still to be visited by the current walk
    cdef headers_t headers
    cdef bint headers_known

    # None: there is no such exchange. headers: a table without its length, valid. Lengths: as on the wire, up to 255.
    cdef Route find(self, const uint8_t* name, uint32_t n, const uint8_t* key, uint32_t key_length,
                    const uint8_t* headers, uint32_t headers_length)
    # The same for one message with several keys (bytes), not cached. An alternate exchange is used only if none of the
    # keys matches.
    cdef Route find_keys(self, const uint8_t* name, uint32_t n, list keys, const uint8_t* headers,
                         uint32_t headers_length)
    cdef Route walk(self, Exchange first, const uint8_t* key, uint32_t key_length, const uint8_t* headers,
                    uint32_t headers_length, list keys)
    cdef size_t visit(self, Exchange exchange, const uint8_t* key, uint32_t key_length, const uint8_t* headers,
                      uint32_t headers_length) except? 0xFFFFFFFF
    cdef size_t visit_headers(self, Exchange exchange, const uint8_t* headers, uint32_t length) except? 0xFFFFFFFF
    cdef size_t take(self, const enode_t* node) except? 0xFFFFFFFF
    cdef int reach(self, Destination destination) except -1
    cdef list met_queues(self)
    cdef int keep(self, entry_t** way, uint64_t hash, const uint8_t* name, uint32_t n, const uint8_t* key,
                  uint32_t key_length, Route route) except -1
    cdef int drop_entry(self, entry_t** way) except -1
    cpdef int let_go(self) except -1
