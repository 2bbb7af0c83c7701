"""Exchanges of one virtual host: who is bound to whom, and where a message goes.

    Exchanges ── exchanges: name -> Exchange ── its table (exchange/table.pxd): key, pattern or field -> Binding
              └─ queues:    name -> QueueEnd ◄──────────────────────────────────────────────────────┘

A route is found by walking from exchange to exchange, each visited once, so that cycles end: what is bound under this
key, or, of an exchange where nothing was, its alternate. What it led to is a Route. Routes that no header had a say
in are remembered by exchange and key (sets of four, the least recently used gives way) for as long as `generation`
stands; a publisher may remember one itself and compare the generation.

The cold half is engine/exchanges/: it decides what may be declared, bound and deleted, and this object does it.
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

cdef struct entry_t:                # a route that is remembered
    uint64_t hash
    uint64_t generation
    uint64_t used
    PyObject* route                 # owned
    uint32_t name_length
    uint32_t key_length             # both names are behind this struct

cdef struct met_t:                  # a queue that a walk came to
    uint64_t order
    PyObject* queue                 # a QueueEnd, borrowed

cdef class Route:
    cdef readonly list queues       # each once, those that are there longest first
    cdef readonly bint mqtt         # it went through `amq.topic` of "/": the other half are subscribers of MQTT topics
    cdef readonly bint internal     # the exchange that was named takes nothing from publishers (403)
    cdef readonly bint routed       # there is a queue
    cdef readonly bint by_headers   # headers decided: it holds for this one message

cdef class Destination:
    cdef readonly bytes name
    cdef readonly bint durable
    cdef readonly set inbound       # Binding: those that lead here; None: there never was one
    cdef uint64_t order
    cdef uint64_t seen              # the walk that came here last
    cdef bint is_exchange

cdef class QueueEnd(Destination):
    cdef readonly object queue

cdef class Exchange(Destination):
    cdef public uint64_t number             # 0: no record names it
    cdef readonly uint8_t kind              # EXCHANGE_*
    cdef readonly bint auto_delete
    cdef readonly bint internal
    cdef readonly bint is_default           # the one without a name: a key is the name of a queue
    cdef readonly bint is_mqtt
    cdef readonly bytes alternate           # or None
    cdef readonly dict outbound             # Binding -> itself: those that begin here
    cdef public object data                 # the cold half's
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
    cdef public object on_mqtt              # (Binding of it, whether there is one now or no more); None: nobody asks
    cdef readonly uint64_t generation       # any change of what is bound, or there
    cdef readonly uint64_t hits
    cdef readonly uint64_t misses
    cdef entry_t** sets
    cdef uint64_t sets_mask
    cdef uint64_t tick
    cdef uint64_t seed
    cdef uint64_t walks
    cdef uint64_t order_last
    cdef uint32_t removed                   # queues, since stale routes were let go of
    cdef met_t* met                         # of the walk under way
    cdef size_t met_count
    cdef size_t met_capacity
    cdef list work                          # Exchange: where it goes on
    cdef headers_t headers
    cdef bint headers_known

    # None: there is no such exchange. headers: a table without its length, valid. Lengths: as on the wire, up to 255.
    cdef Route find(self, const uint8_t* name, uint32_t n, const uint8_t* key, uint32_t key_length,
                    const uint8_t* headers, uint32_t headers_length)
    # The same for one message under several keys (bytes), which is not remembered: an alternate is for what none of
    # them leads anywhere.
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
    cpdef int let_go(self) except -1
