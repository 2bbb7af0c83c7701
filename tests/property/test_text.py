"""Text, topic names, filters: the compiled checks against Python's own decoder and a naive reading of the grammar."""
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.exact import exact

from fluxmq._core.wire import text

# Bytes that stand at the borders of UTF-8, mixed with ASCII so that the eight-byte path is entered and left.
EDGES = st.lists(st.sampled_from([b"a", b"abcdefgh", b"/", b"+", b"#", b"\0", b"\x7f", b"\x80", b"\xbf", b"\xc0",
                                  b"\xc1", b"\xc2", b"\xe0", b"\xed", b"\xef", b"\xf0", b"\xf4", b"\xf5", b"\xff",
                                  b"\x9f",
                                  b"\xa0", b"\x8f", b"\x90", "é".encode(), "€".encode(), "\U0001f600".encode(),
                                  "\ufeff".encode(), "\U0010ffff".encode()]), max_size=20).map(b"".join)
BYTES = st.one_of(st.binary(max_size=40), EDGES, st.text(max_size=30).map(lambda s: s.encode("utf-8", "surrogatepass")))
TOPICS = st.one_of(BYTES, st.text(alphabet="ab/./+#$é", max_size=30).map(str.encode))


def is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode("utf-8")
    except UnicodeDecodeError:
        return False


def topic(data: bytes, levels_max: int) -> int:
    if not is_text(data):
        return -1
    levels = data.decode().split("/")
    return int(bool(data) and not set("+#") & set(data.decode()) and (not levels_max or len(levels) <= levels_max))


def topic_filter(data: bytes, levels_max: int) -> int:
    if not is_text(data):
        return -1
    levels = data.decode().split("/")
    good = bool(data) and (not levels_max or len(levels) <= levels_max)
    for i, level in enumerate(levels):
        if level == "+" or (level == "#" and i == len(levels) - 1):
            continue
        good = good and not set("+#") & set(level)
    return int(good)


@settings(max_examples=1000)
@given(BYTES)
@example(b"")
def test_text_is_what_python_decodes_without_nul(data: bytes) -> None:
    assert text.is_text(exact(data)) == is_text(data)


@settings(max_examples=1000)
@given(TOPICS, st.integers(0, 6))
def test_topic_names(data: bytes, levels_max: int) -> None:
    assert text.check_topic(exact(data), levels_max) == topic(data, levels_max)


@settings(max_examples=1000)
@given(TOPICS, st.integers(0, 6))
def test_topic_filters(data: bytes, levels_max: int) -> None:
    assert text.check_filter(exact(data), levels_max) == topic_filter(data, levels_max)


@given(st.one_of(TOPICS, TOPICS.map(lambda tail: b"$share/" + tail),
                 st.builds(lambda name, tail: b"$share/" + name + b"/" + tail, TOPICS, TOPICS)))
def test_share_filters(data: bytes) -> None:
    parts = data.split(b"/", 2)
    if parts[0] != b"$share" or len(parts) == 1:
        assert text.split_share(exact(data)) is None
        return
    good = len(parts) == 3 and parts[1] and parts[2] and not set(b"+#") & set(parts[1])
    try:
        found = text.split_share(exact(data))
    except ValueError:
        assert not good
    else:
        assert good
        assert found == (parts[1], parts[2])
