"""The table of a run: system calls × errors × moments, and what became of the broker each time."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kit.faultydisk import CALLS, PHASES, Point

__all__ = ["OUTCOMES", "TABLE", "table", "table_of_flips"]

TABLE = "table of faults"       # a property of a test: what conftest.py shows at the end of the run

# unharmed: it went on. ended: it ended itself with an error that names the file, and the next start had everything.
# refused: the start did, with an error that names the file, and the next had everything. repaired: after that the
# command that the error names made it start. WRONG: anything else.
OUTCOMES = ("unharmed", "ended", "refused", "repaired", "WRONG")
SIGNS = dict(zip(OUTCOMES, "uerpX", strict=True))
MOMENTS = PHASES[1:]


def table(results: Iterable[dict[str, Any]]) -> str:
    """One line for each system call and error. results: as points.py prints them; what did not fire is not counted."""
    cells: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    totals: Counter[str] = Counter()
    idle = 0
    for result in results:
        if not result["fired"]:
            idle += 1
            continue
        point = Point.read(result["point"].partition("/")[0])
        row = cells.setdefault((point.call, point.error), {moment: Counter() for moment in MOMENTS})
        row[point.phase][result["outcome"]] += 1
        totals[result["outcome"]] += 1
    lines = [f"{'call':<10} {'error':<7}" + "".join(f" {moment:<18}" for moment in MOMENTS)]
    for (call, error), row in sorted(cells.items(), key=lambda item: (CALLS.index(item[0][0]), item[0][1])):
        shown = (" ".join(f"{count}{SIGNS[outcome]}" for outcome in OUTCOMES if (count := row[moment][outcome]))
                 for moment in MOMENTS)
        lines.append(f"{call:<10} {error:<7}" + "".join(f" {text or '-':<18}" for text in shown))
    lines.append("u unharmed, e ended itself and recovered, r refused at start and recovered, p repaired, X wrong")
    told = ", ".join(f"{totals[outcome]} {outcome}" for outcome in OUTCOMES)
    lines.append(f"{sum(totals.values())} points: {told}; {idle} did not come and do not count")
    return "\n".join(line.rstrip() for line in lines)


def table_of_flips(results: Iterable[dict[str, Any]], of: str = "bit of") -> str:
    """One line for each folder of the storage directory. results: as flips.py has them."""
    counted = Counter((told["flip"].partition("/")[0], told["outcome"]) for told in results)
    lines = [f"{of:<10}{'repaired':>10}{'unharmed':>10}{'cut off':>10}{'WRONG':>10}"]
    for folder in sorted({folder for folder, _ in counted}):
        shown = (counted[folder, outcome] for outcome in ("repaired", "unharmed", "reported", "WRONG"))
        lines.append(f"{folder:<10}" + "".join(f"{count:>10}" for count in shown))
    return "\n".join(lines)
