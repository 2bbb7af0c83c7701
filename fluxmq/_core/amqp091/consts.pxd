# cython: language_level=3
"""The numbers of AMQP 0-9-1: frame types, methods, reply codes, property flags.

C enums, for cimport only. Made by proto/amqp091/generate.py from the table beside it: change that, not this.
"""

cdef enum:            # frame types, and the octet that ends each frame
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE

cdef enum:            # connection: class << 16 | method, the first four bytes of its frame
    CONNECTION_START = 10 << 16 | 10
    CONNECTION_START_OK = 10 << 16 | 11
    CONNECTION_SECURE = 10 << 16 | 20
    CONNECTION_SECURE_OK = 10 << 16 | 21
    CONNECTION_TUNE = 10 << 16 | 30
    CONNECTION_TUNE_OK = 10 << 16 | 31
    CONNECTION_OPEN = 10 << 16 | 40
    CONNECTION_OPEN_OK = 10 << 16 | 41
    CONNECTION_CLOSE = 10 << 16 | 50
    CONNECTION_CLOSE_OK = 10 << 16 | 51
    CONNECTION_BLOCKED = 10 << 16 | 60
    CONNECTION_UNBLOCKED = 10 << 16 | 61
    CONNECTION_UPDATE_SECRET = 10 << 16 | 70
    CONNECTION_UPDATE_SECRET_OK = 10 << 16 | 71

cdef enum:            # channel: class << 16 | method, the first four bytes of its frame
    CHANNEL_OPEN = 20 << 16 | 10
    CHANNEL_OPEN_OK = 20 << 16 | 11
    CHANNEL_FLOW = 20 << 16 | 20
    CHANNEL_FLOW_OK = 20 << 16 | 21
    CHANNEL_CLOSE = 20 << 16 | 40
    CHANNEL_CLOSE_OK = 20 << 16 | 41

cdef enum:            # exchange: class << 16 | method, the first four bytes of its frame
    EXCHANGE_DECLARE = 40 << 16 | 10
    EXCHANGE_DECLARE_OK = 40 << 16 | 11
    EXCHANGE_DELETE = 40 << 16 | 20
    EXCHANGE_DELETE_OK = 40 << 16 | 21
    EXCHANGE_BIND = 40 << 16 | 30
    EXCHANGE_BIND_OK = 40 << 16 | 31
    EXCHANGE_UNBIND = 40 << 16 | 40
    EXCHANGE_UNBIND_OK = 40 << 16 | 51

cdef enum:            # queue: class << 16 | method, the first four bytes of its frame
    QUEUE_DECLARE = 50 << 16 | 10
    QUEUE_DECLARE_OK = 50 << 16 | 11
    QUEUE_BIND = 50 << 16 | 20
    QUEUE_BIND_OK = 50 << 16 | 21
    QUEUE_PURGE = 50 << 16 | 30
    QUEUE_PURGE_OK = 50 << 16 | 31
    QUEUE_DELETE = 50 << 16 | 40
    QUEUE_DELETE_OK = 50 << 16 | 41
    QUEUE_UNBIND = 50 << 16 | 50
    QUEUE_UNBIND_OK = 50 << 16 | 51

cdef enum:            # basic: class << 16 | method, the first four bytes of its frame
    BASIC_QOS = 60 << 16 | 10
    BASIC_QOS_OK = 60 << 16 | 11
    BASIC_CONSUME = 60 << 16 | 20
    BASIC_CONSUME_OK = 60 << 16 | 21
    BASIC_CANCEL = 60 << 16 | 30
    BASIC_CANCEL_OK = 60 << 16 | 31
    BASIC_PUBLISH = 60 << 16 | 40
    BASIC_RETURN = 60 << 16 | 50
    BASIC_DELIVER = 60 << 16 | 60
    BASIC_GET = 60 << 16 | 70
    BASIC_GET_OK = 60 << 16 | 71
    BASIC_GET_EMPTY = 60 << 16 | 72
    BASIC_ACK = 60 << 16 | 80
    BASIC_REJECT = 60 << 16 | 90
    BASIC_RECOVER_ASYNC = 60 << 16 | 100
    BASIC_RECOVER = 60 << 16 | 110
    BASIC_RECOVER_OK = 60 << 16 | 111
    BASIC_NACK = 60 << 16 | 120

cdef enum:            # confirm: class << 16 | method, the first four bytes of its frame
    CONFIRM_SELECT = 85 << 16 | 10
    CONFIRM_SELECT_OK = 85 << 16 | 11

cdef enum:            # tx: class << 16 | method, the first four bytes of its frame
    TX_SELECT = 90 << 16 | 10
    TX_SELECT_OK = 90 << 16 | 11
    TX_COMMIT = 90 << 16 | 20
    TX_COMMIT_OK = 90 << 16 | 21
    TX_ROLLBACK = 90 << 16 | 30
    TX_ROLLBACK_OK = 90 << 16 | 31

cdef enum:            # the classes themselves
    CLASS_CONNECTION = 10
    CLASS_CHANNEL = 20
    CLASS_EXCHANGE = 40
    CLASS_QUEUE = 50
    CLASS_BASIC = 60
    CLASS_CONFIRM = 85
    CLASS_TX = 90

cdef enum:            # reply codes
    REPLY_SUCCESS = 200
    REPLY_CONTENT_TOO_LARGE = 311       # closes the channel
    REPLY_NO_ROUTE = 312                # closes the channel
    REPLY_NO_CONSUMERS = 313            # closes the channel
    REPLY_CONNECTION_FORCED = 320       # closes the connection
    REPLY_INVALID_PATH = 402            # closes the connection
    REPLY_ACCESS_REFUSED = 403          # closes the channel
    REPLY_NOT_FOUND = 404               # closes the channel
    REPLY_RESOURCE_LOCKED = 405         # closes the channel
    REPLY_PRECONDITION_FAILED = 406     # closes the channel
    REPLY_FRAME_ERROR = 501             # closes the connection
    REPLY_SYNTAX_ERROR = 502            # closes the connection
    REPLY_COMMAND_INVALID = 503         # closes the connection
    REPLY_CHANNEL_ERROR = 504           # closes the connection
    REPLY_UNEXPECTED_FRAME = 505        # closes the connection
    REPLY_RESOURCE_ERROR = 506          # closes the connection
    REPLY_NOT_ALLOWED = 530             # closes the connection
    REPLY_NOT_IMPLEMENTED = 540         # closes the connection
    REPLY_INTERNAL_ERROR = 541          # closes the connection

cdef enum:            # bits of the property flags
    PROPERTY_CONTENT_TYPE = 1 << 15
    PROPERTY_CONTENT_ENCODING = 1 << 14
    PROPERTY_HEADERS = 1 << 13
    PROPERTY_DELIVERY_MODE = 1 << 12
    PROPERTY_PRIORITY = 1 << 11
    PROPERTY_CORRELATION_ID = 1 << 10
    PROPERTY_REPLY_TO = 1 << 9
    PROPERTY_EXPIRATION = 1 << 8
    PROPERTY_MESSAGE_ID = 1 << 7
    PROPERTY_TIMESTAMP = 1 << 6
    PROPERTY_TYPE = 1 << 5
    PROPERTY_USER_ID = 1 << 4
    PROPERTY_APP_ID = 1 << 3
    PROPERTY_CLUSTER_ID = 1 << 2
