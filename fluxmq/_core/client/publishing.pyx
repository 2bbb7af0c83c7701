# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""A publish under way, as publish_nowait returns it."""
cimport cython

__all__ = ["Publishing"]

cdef enum:
    PENDING = -2


@cython.final
@cython.freelist(1024)
cdef class Publishing:
    """Machine. Pending until the acknowledgement or a failure. Awaiting it gives the outcome, any number of times.

    owner provides: new_future(), waiting(±1) around every wait, answer_properties (of the acknowledgement that is being
    handled), and outcome(publishing), which returns or raises the result of an await.
    """

    cdef object owner
    cdef object future              # of the first that awaits it
    cdef list others                # of further ones: cancelling one must not cancel the others
    cdef readonly int packet_id
    cdef readonly int reason        # of the acknowledgement; -2: none yet
    cdef readonly object answer_properties  # None: it has none, or it is plain success
    cdef readonly object error      # why there will be no acknowledgement
    cdef readonly bint abandoned    # must not be sent any more

    def __init__(self, owner) -> None:
        self.owner = owner
        self.reason = PENDING

    def __call__(self, int packet_id, int reason) -> None:
        """The `done` of the machine: the acknowledgement arrived."""
        self.packet_id = packet_id
        self.reason = reason
        if reason:
            self.answer_properties = self.owner.answer_properties
        self.wake()

    def fail(self, error) -> None:
        """There will be no acknowledgement."""
        if self.reason == PENDING and self.error is None:
            self.error = error
            self.wake()

    def abandon(self) -> None:
        """Cancels the publish if it was not sent yet."""
        self.abandoned = True

    def done(self) -> bool:
        """Whether an await would return at once."""
        return self.reason != PENDING or self.error is not None

    cdef int wake(self) except -1:
        future, self.future = self.future, None
        if future is not None and not future.done():
            future.set_result(None)
        if self.others is not None:
            for future in self.others:
                if not future.done():
                    future.set_result(None)
        return 0

    def __await__(self):
        while self.reason == PENDING and self.error is None:
            if self.future is None or self.future.done():
                future = self.future = self.owner.new_future()
            else:
                future = self.owner.new_future()
                if self.others is None:
                    self.others = []
                self.others.append(future)
            self.owner.waiting(1)
            try:
                yield from future
            finally:
                self.owner.waiting(-1)
                if self.others is not None and future in self.others:
                    self.others.remove(future)
        return self.owner.outcome(self)
