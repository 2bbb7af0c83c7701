"""The picture of a simulated time: the same counts give the same lines, dots move at their speed."""
from __future__ import annotations

import pytest

from fluxmq._core.record.counts import BUCKETS, KINDS, bucket_of
from fluxmq.view.belts import ASCII, LETTERS, UNICODE, help_lines
from fluxmq.view.lanes import Lanes
from fluxmq.view.picture import CROSSING_S, SAID_S, Line, Numbers, Picture
from fluxmq.view.words import amount, fitted, percentile, took

PUBLISH, CONFIRM, DELIVER, ACK, NACK, PING, ERROR = range(len(KINDS))


def counts(**kinds: int) -> list[int]:
    return [kinds.get(name, 0) for name in KINDS]


def text(line: Line) -> str:
    return "".join(run for run, _ in line)


def picture(columns: int = 80, rows: int = 24) -> tuple[Picture, int]:
    """One queue of one partition, and its lane."""
    lanes = Lanes()
    made = Picture(lanes, columns, rows, ASCII)
    return made, lanes.lane_of(b"$queue/orders", None)[0]


def lane_text(it: Picture) -> str:
    return next(text(line) for line in it.frame() if "orders" in text(line))


def halves(it: Picture) -> tuple[str, str]:
    _, left, _, right, _ = lane_text(it).split("|")
    return left, right


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50), (40, 8), (69, 24), (139, 30), (20, 4), (500, 200)])
@pytest.mark.parametrize("glyphs", [ASCII, UNICODE])
def test_a_frame_fits_the_screen(columns: int, rows: int, glyphs: object) -> None:
    lanes = Lanes()
    it = Picture(lanes, columns, rows, glyphs)  # type: ignore[arg-type]
    numbers = [lanes.lane_of(b"$queue/a-rather-long-name-of-a-queue-%d" % at, None)[0] for at in range(60)]
    it.numbers = Numbers(nodes=[(f"node-{at}", "serving", 10 ** at) for at in range(9)], shown=0.001, received=1e9,
                         sent=1e9, confirm=(1e7, 1e7), ack=(1e7, 1e7), backlog=10 ** 9, errors=10 ** 9,
                         clients=[(f"client-{at}", "paused") for at in range(9)], traffic="9/s each")
    for _ in range(40):
        it.step(0.033, {number: counts(publish=20, confirm=20, deliver=20, ack=20, error=1) for number in numbers})
        lines = it.frame()
        assert len(lines) == rows
        assert all(len(text(line)) <= columns for line in lines)
    it.help = True
    assert len(it.frame()) == rows


@pytest.mark.parametrize(("columns", "rows"), [(39, 24), (80, 7), (20, 5), (1, 1)])
def test_a_screen_that_is_too_small_is_told(columns: int, rows: int) -> None:
    it, _ = picture(columns, rows)
    said = "".join(text(line) for line in it.frame())
    assert len(it.frame()) == rows and said.startswith("too small: 40 x 8 is the least"[:columns * rows])
    it.resize(40, 8)
    assert "FluxMQ" in text(it.frame()[0])


@pytest.mark.parametrize("of", ["node", "client"])
def test_what_has_the_focus_is_on_the_screen(of: str) -> None:
    it, _ = picture(80, 24)
    names = [f"a-{of}-with-a-name-{at}" for at in range(9)]
    it.numbers = Numbers(nodes=[(name, "serving", 2) for name in names] if of == "node" else [],
                         clients=[(name, "running") for name in names] if of == "client" else [])
    for name in [*names, *reversed(names)]:
        it.focus = (of, name)
        assert any(f"{name}" in (found := text(line)) and "[" in found and "]" in found for line in it.frame()), name
    it.focus = None
    assert any(f" {names[0]} " in text(line) or f" {names[0]}" in text(line) for line in it.frame())


def test_what_a_key_has_done_covers_what_is_wrong_for_a_while() -> None:
    it, _ = picture()
    it.numbers = Numbers(trouble="node-2 is not watched")
    it.step(1.0, {})
    assert "not watched" in text(it.frame()[-1])
    it.status = "node-2: restart"
    assert "node-2: restart" in text(it.frame()[-1])
    it.step(SAID_S + 0.1, {})
    assert "not watched" in text(it.frame()[-1])


def test_a_publish_crosses_in_its_time_and_is_gone() -> None:
    it, lane = picture()
    it.step(0.0, {})
    it.step(CROSSING_S / it.slots, {lane: counts(publish=1)})
    assert halves(it)[0][0] == "."
    places = []
    for _ in range(it.slots - 1):
        it.step(CROSSING_S / it.slots, {})
        left, right = halves(it)
        assert left.count(".") == 1 and not right.strip()
        places.append(left.index("."))
    assert places == list(range(2, 2 * it.slots, 2))
    it.step(CROSSING_S / it.slots, {})
    assert not halves(it)[0].strip()


@pytest.mark.parametrize(("kind", "half", "begins", "ends", "glyph"), [
    ("publish", 0, "left", "right", "."), ("confirm", 0, "right", "left", "'"), ("deliver", 1, "left", "right", "."),
    ("ack", 1, "right", "left", "'"), ("nack", 1, "right", "left", "n"), ("error", 0, "right", "left", "X")])
def test_each_kind_goes_its_way(kind: str, half: int, begins: str, ends: str, glyph: str) -> None:
    it, lane = picture()
    step = CROSSING_S / it.slots
    it.step(step, {lane: counts(**{kind: 1})})
    first = halves(it)[half]
    for _ in range(it.slots - 1):
        it.step(step, {})
    last = halves(it)[half]
    width = len(first)
    where = {"left": (0, 1), "right": (width - 2, width - 1)}
    assert first.index(glyph) in where[begins]
    assert last.index(glyph) in where[ends]
    assert len(first.strip()) == len(last.strip()) == 1
    assert not halves(it)[1 - half].strip()


def test_more_in_one_step_is_a_larger_dot() -> None:
    for count, glyph in ((1, "."), (2, "o"), (9, "o"), (10, "O"), (10 ** 6, "O")):
        it, lane = picture()
        it.step(CROSSING_S / it.slots, {lane: counts(publish=count)})
        assert halves(it)[0].strip() == glyph


def test_a_slow_screen_moves_as_far_as_a_fast_one() -> None:
    """Ten frames a second or thirty: after the same time the dots are at the same places, and none is lost."""
    shown = []
    for frames in (10, 30, 60):
        it, lane = picture()
        for at in range(frames):
            it.step(1 / frames, {lane: counts(publish=1)} if at == 0 else {})
        shown.append(halves(it)[0].index("."))
    assert max(shown) - min(shown) <= 2
    it, lane = picture()
    it.step(0.5, {lane: counts(publish=4)})         # several steps at once: spread over them
    assert sum(halves(it)[0].count(glyph) for glyph in ".oO") >= min(4, int(it.slots / 3))


def test_what_comes_between_two_steps_is_not_lost() -> None:
    it, lane = picture()
    for _ in range(5):
        it.step(0.0001, {lane: counts(publish=1)})
    it.step(CROSSING_S / it.slots, {})
    assert halves(it)[0].strip() == "o"


def test_the_same_history_gives_the_same_frames() -> None:
    def film() -> list[list[Line]]:
        it, lane = picture()
        frames = []
        for at in range(200):
            it.step(0.033, {lane: counts(publish=at % 3, confirm=at % 2, deliver=at % 5, ack=1, ping=at % 7)})
            frames.append(it.frame())
        return frames

    assert film() == film()


def test_a_lane_where_nothing_happens_costs_nothing() -> None:
    """Its line is the same object: the screen need not look at it."""
    it, lane = picture()
    other = it.lanes.lane_of(b"$queue/quiet", None)[0]
    it.step(0.1, {lane: counts(publish=1), other: counts(publish=1)})
    for _ in range(40):
        it.step(0.1, {lane: counts(publish=1)})
    it.step(0.01, {})
    before = {line[0][0].strip(): line for line in it.frame()}
    it.step(0.2, {lane: counts(publish=3)})
    after = {line[0][0].strip(): line for line in it.frame()}
    assert before["quiet"] is after["quiet"]
    assert before["orders"] != after["orders"]


def test_owners_have_colours_and_a_move_is_seen() -> None:
    it, _ = picture()
    it.lanes.learn_queues([("orders", [("n1", 5, False), ("n2", 0, False)])], it.time)
    lines = {text(line)[:9].strip(): line for line in it.frame()}
    assert lines["orders/0"][0][1] == "owner0" and lines["orders/1"][0][1] == "owner1"
    assert "n1" in text(lines["orders/0"]) and " 5 " in text(lines["orders/0"])
    it.step(1.0, {})
    it.lanes.learn_queues([("orders", [("n2", 5, False), ("n2", 0, True)])], it.time)
    lines = {text(line)[:9].strip(): line for line in it.frame()}
    assert "n1>n2" in text(lines["orders/0"])
    assert {style for _, style in lines["orders/0"]} >= {"owner1", "moved"}
    assert "away" in text(lines["orders/1"])
    for _ in range(30):
        it.step(0.1, {})
    lines = {text(line)[:9].strip(): line for line in it.frame()}
    assert "n1>n2" not in text(lines["orders/0"]) and "n2" in text(lines["orders/0"])
    assert lines["orders/0"][0][1] == "owner1"


def test_sampling_is_said() -> None:
    it, _ = picture()
    it.numbers = Numbers(shown=1 / 12, confirm=(900.0, 12_000.0))
    head = [text(line) for line in it.frame()[:3]]
    assert "sampled: 1 of 12 shown" in head[2]
    assert "confirm p50 ~900" in head[1] and "p99 ~12.0ms" in head[1]
    it.numbers = Numbers(shown=0.0)
    assert "sampled: below 0.1 % shown" in text(it.frame()[2])
    it.numbers = Numbers(shown=1.0, confirm=(900.0, 12_000.0))
    head = [text(line) for line in it.frame()[:3]]
    assert "sampled" not in head[2] and "~" not in head[1]


def test_the_focus_is_scrolled_to() -> None:
    lanes = Lanes()
    it = Picture(lanes, 80, 12, ASCII)
    for number in range(50):
        lanes.lane_of(b"$queue/q%02d" % number, None)
    assert "q00" in "".join(map(text, it.frame()))
    assert "42 more lanes" in text(it.frame()[-1])
    it.focus = ("lane", "q40")
    shown = "".join(map(text, it.frame()))
    assert ">q40" in shown and "q00" not in shown


def test_trouble_is_in_the_last_line() -> None:
    it, _ = picture()
    it.numbers = Numbers(trouble="no broker answers")
    assert it.frame()[-1] == ((" no broker answers", "error"),)


def test_names_cannot_move_the_cursor() -> None:
    it, _ = picture()
    it.lanes.lane_of(b"\x1b[2Jevil\x07\xe2\x80\xae/x", None)
    it.numbers = Numbers(name="\x1b[31m", nodes=[("\x1b1", "serving", 1), ("\x1b2", "down", 0)], trouble="\x1bx",
                         clients=[("\x1b]0;x", "running")])
    assert all(run.isprintable() for line in it.frame() for run, _ in line)


def test_resize_keeps_what_is_on_the_way() -> None:
    it, lane = picture()
    for _ in range(5):
        it.step(CROSSING_S / it.slots, {lane: counts(publish=1, confirm=1)})
    it.resize(120, 40)
    assert halves(it)[0].count(".") == 5
    it.resize(80, 24)
    left = halves(it)[0]
    assert left.count(".") == 5 and len(left) == 2 * it.slots


@pytest.mark.parametrize(("value", "shown"), [
    (0, "0"), (0.5, "0.5"), (7, "7"), (999, "999"), (9999, "9999"), (12_345, "12.3k"), (123_456, "123k"),
    (1_200_000, "1.2M"), (2_000_000, "2M"), (-1, "?"), (5e9, "5G"), (7e12, "7T")])
def test_amounts_are_short(value: float, shown: str) -> None:
    assert amount(value) == shown


@pytest.mark.parametrize(("us", "shown"), [
    (-1, "-"), (12, "12µs"), (1500, "1.5ms"), (150_000, "150ms"), (2.5e6, "2.5s")])
def test_latencies_are_short(us: float, shown: str) -> None:
    assert took(us) == shown


def test_long_names_lose_their_middle() -> None:
    assert fitted("abcdefghij", 6) == "abc~ij"
    assert fitted("abc", 6) == "abc   "


def test_a_percentile_is_the_first_bucket_that_reaches_its_share() -> None:
    buckets = [0] * BUCKETS
    buckets[3], buckets[9], buckets[12] = 50, 49, 1
    assert [percentile(buckets, share) for share in (0.01, 0.5, 0.51, 0.99, 1.0)] == [3.5, 3.5, 9.5, 9.5, 12.5]


def test_percentiles_are_within_an_eighth() -> None:
    buckets = [0] * BUCKETS
    assert percentile(buckets, 0.5) == -1
    for us in range(1, 10_001):
        buckets[bucket_of(us * 1000)] += 1
    for share in (0.01, 0.5, 0.99):
        assert percentile(buckets, share) == pytest.approx(share * 10_000, rel=0.13)


def test_glyphs_take_one_column_and_ascii_is_ascii() -> None:
    assert set(ASCII.belt) == set(map(ord, LETTERS))
    assert "".join(ASCII.belt.values()).isascii()
    it, lane = picture()
    it.help = True
    assert all(text(line).isascii() for line in it.frame())
    assert all(len(line) < 80 for glyphs in (ASCII, UNICODE) for line in help_lines(glyphs))
    assert len(help_lines(ASCII)) < 24
    it.help = False
    it.step(0.1, {lane: counts(**dict.fromkeys(KINDS, 1))})
    it.numbers = Numbers(confirm=(12.0, 50.0), nodes=[("a", "serving", 1), ("b", "down", 0)])
    assert all(text(line).isascii() for line in it.frame())
