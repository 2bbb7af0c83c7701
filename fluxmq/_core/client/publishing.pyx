# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""A publish on its way: what publish_nowait gives, to be awaited or not."""
cimport cython

__all__ = ["Publishing"]

cdef enum:
    PENDING = -2


@cython.final
@cython.freelist(1024)
cdef class Publishing:
    """Machine. PENDING until the acknowledgement or a failure; await it for the outcome, as often as one likes.

    owner provides: new_future(), waiting(±1) around every wait, told (properties of what is being heard of), and
    outcome(publishing), which gives what an await gives or raises.
    """

    cdef object owner
    cdef object future              # of who awaits it
    cdef list others                # of those who do besides: one that is cancelled must not cancel the rest
    cdef readonly int packet_id
    cdef readonly int reason        # of the acknowledgement; -2 while there is none
    cdef readonly object told       # its properties, None when it has none or says just success
    cdef readonly object error      # why there will be none
    cdef readonly bint abandoned    # nobody wants it any more: it is not sent, if it was not yet

    def __init__(self, owner) -> None:
        self.owner = owner
        self.reason = PENDING

    def __call__(self, int packet_id, int reason) -> None:
        """The acknowledgement came: a `done` of the machine."""
        self.packet_id = packet_id
        self.reason = reason
        if reason:
            self.told = self.owner.told
        self.wake()

    def fail(self, error) -> None:
        """There will be no acknowledgement."""
        if self.reason == PENDING and self.error is None:
            self.error = error
            self.wake()

    def abandon(self) -> None:
        """Not to be sent, if it was not yet."""
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
