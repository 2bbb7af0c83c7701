"""What moves along a lane: places on belts, letters for what they hold, and what the letters look like.

A place is what happened within the time of one step: nothing, one, several, many.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from fluxmq._core.record.counts import KINDS

__all__ = ["ASCII", "DELIVERED", "PLAIN", "SENT", "UNICODE", "Belts", "Glyphs", "help_lines"]

SENT, CONFIRMED, DELIVERED, ACKNOWLEDGED, GIVEN_BACK, PINGED, FAILED = range(len(KINDS))
FEW, MANY = 2, 10       # from how many on in one step a dot is larger


@dataclass(frozen=True)
class Glyphs:
    """What the places of a belt look like: each of one column. belt: translates the letters of Picture."""

    belt: dict[int, str]
    edge: tuple[str, str]
    up: str
    down: str
    moved: str

    @staticmethod
    def of(dots: str, edge: tuple[str, str], up: str, down: str, moved: str) -> Glyphs:
        """dots: of LETTERS."""
        return Glyphs(str.maketrans(dict(zip(LETTERS, dots, strict=True))), edge, up, down, moved)


# One letter for each kind and size: publish, confirm, deliver, acknowledge; given back, ping, error.
LETTERS = "abcdefghijklnpx"
OF_KIND = {SENT: "abc", CONFIRMED: "def", DELIVERED: "ghi", ACKNOWLEDGED: "jkl", GIVEN_BACK: "nnn", PINGED: "ppp",
           FAILED: "xxx"}
UNICODE = Glyphs.of("·•●∘○◎·•◆∘◇◈↩·✖", ("├", "┤"), "●", "✖", "▸")
ASCII = Glyphs.of(".oO'cC.oO'aAn.X", ("|", "|"), "+", "x", ">")
# Of other texts, where only ASCII can be shown.
PLAIN = str.maketrans({"─": "-", "►": ">", "◄": "<", "µ": "u", "…": "~"})


@dataclass(slots=True)
class Belts:
    """Machine. The belts of one lane: strings of letters, a blank is nothing."""

    slots: int
    there: str = ""         # left half, to the right
    back: str = ""          # left half, to the left
    out: str = ""           # right half
    home: str = ""
    waiting: list[int] = field(default_factory=lambda: [0] * len(KINDS))
    blank: bool = True
    rate: float = 0.0       # events per second, smoothed
    said: str = ""          # the rate, as it was last shown

    def __post_init__(self) -> None:
        self.resize(self.slots)

    def resize(self, slots: int) -> None:
        self.slots = slots
        self.there, self.out = self.there[:slots].ljust(slots), self.out[:slots].ljust(slots)
        self.back, self.home = self.back[-slots:].rjust(slots), self.home[-slots:].rjust(slots)

    def step(self, steps: int) -> bool:
        """Moves everything on; whether anything changed."""
        waiting = self.waiting
        if not any(waiting):
            if self.blank:
                return False
            self._move(" " * steps, " " * steps, " " * steps, " " * steps)
            self.blank = not (self.there + self.back + self.out + self.home).strip()
            return True
        there, back, out, home = [], [], [], []
        for at in range(steps):
            n = [count * (at + 1) // steps - count * at // steps for count in waiting]
            there.append(_letter(SENT, n[SENT]) or _letter(PINGED, n[PINGED]) or " ")
            back.append(_letter(FAILED, n[FAILED]) or _letter(CONFIRMED, n[CONFIRMED]) or " ")
            out.append(_letter(DELIVERED, n[DELIVERED]) or " ")
            home.append(_letter(GIVEN_BACK, n[GIVEN_BACK]) or _letter(ACKNOWLEDGED, n[ACKNOWLEDGED]) or " ")
        self._move("".join(there[::-1]), "".join(back), "".join(out[::-1]), "".join(home))
        self.waiting = [0] * len(KINDS)
        self.blank = False
        return True

    def _move(self, there: str, back: str, out: str, home: str) -> None:
        slots = self.slots
        self.there, self.out = (there + self.there)[:slots], (out + self.out)[:slots]
        self.back, self.home = (self.back + back)[-slots:], (self.home + home)[-slots:]

    def halves(self) -> tuple[str, str]:
        left, right = [" "] * (2 * self.slots), [" "] * (2 * self.slots)
        left[0::2], left[1::2], right[0::2], right[1::2] = self.there, self.back, self.out, self.home
        return "".join(left), "".join(right)


def _letter(kind: int, count: int) -> str:
    return OF_KIND[kind][(count >= FEW) + (count >= MANY)] if count else ""


def help_lines(glyphs: Glyphs) -> list[str]:
    """The page of the keys. Of each dot one, several and many in a step are shown."""
    dots = LETTERS.translate(glyphs.belt)
    return [line.format(publish=" ".join(dots[0:3]), confirm=" ".join(dots[3:6]), deliver=" ".join(dots[6:9]),
                        ack=" ".join(dots[9:12]), nack=dots[12], error=dots[14]) for line in HELP]


HELP = """
 fluxmq viz

        ─► publish  {publish}            ─► deliver      {deliver}
 client ◄─ confirm  {confirm}     broker ◄─ acknowledge  {ack}    client
           error    {error}                   given back   {nack}

   Tab, Shift+Tab   the focus: nodes, clients of the try-out, lanes
   space            pause or resume the client with the focus; else freeze
   k  r             kill, restart the node or client with the focus, or the
                    owner of the lane with the focus
   n                the next delivery of a demo consumer is given back
   [  ]             publish slower, faster
   c                confirms on or off
   g                messages with keys, or the partitions in turn
   +  -             more or fewer partitions of the queue with the focus
   q, Ctrl+C        quit
   ?                this page

 Keys that change something steer a try-out (fluxmq tryout --hold). On other
 brokers they change nothing.
""".strip("\n").splitlines()
