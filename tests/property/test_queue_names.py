"""Names of queues: which of them are one level of a topic, and so have an address of their own."""
from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from fluxmq.engine.queues.settings import filters_of
from fluxmq.model.queues import QueueSpec, name_problem

NAMES = st.one_of(
    st.text(max_size=250), st.text("ab.:_-/+#$ \0\u00e9\u2028", max_size=6),
    st.text("x", min_size=195, max_size=205),
    st.binary(min_size=1, max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape")))


@given(NAMES.filter(bool))
@example("a" * 200)
@example("a" * 201)
@example("\u00e9" * 101)
@example("$a")
def test_who_has_an_address(name: str) -> None:
    spec = QueueSpec(name=name)
    shown = spec.raw.decode("utf-8", "replace")
    wanted = [] if "\0" in name or name_problem(shown) else [b"$queue/" + spec.raw + b"/#"]
    assert filters_of(spec) == wanted
