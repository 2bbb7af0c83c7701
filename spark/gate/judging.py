"""Judges whether measures became worse than allowed: thresholds, statistics, verdict. Plain Python, no Spark.

    verdict = judge([Pair({"throughput": 100_000}, {"throughput": 99_000}), …], load_thresholds(path))

A pair is one repetition: values of the baseline and, measured as close to it in time as possible, of the candidate. The
figure of a measure is the median over the pairs of candidate / baseline, and the finding depends on an interval around
it (`interval`): regression if all of it is beyond the limit, pass if all of it is within, and noise if it includes the
limit, or if there are too few pairs for an interval at that confidence.
"""
from __future__ import annotations

import difflib
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from fluxmq._core.errors import FluxError

__all__ = ["REGRESSED", "Finding", "GateError", "Outcome", "Pair", "Threshold", "Thresholds", "Verdict", "interval",
           "judge", "load_thresholds", "pairs_needed"]

Outcome = Literal["regression", "pass", "noise", "nothing"]
VERSION = 1
PASSED, REGRESSED, NOTHING = 0, 1, 2


class GateError(FluxError):
    """A thresholds file that cannot be used, or pairs that cannot be made. The text suggests a change."""


class Threshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The threshold of one measure.

    better, worse_by: which direction is better, and by what part of the baseline it may become worse: 0.15 lets a
    throughput fall to 0.85 and a latency rise to 1.15 of the baseline's.
    at_most: or an absolute bound that every run of the candidate must keep, whatever the baseline did.
    gate: false shows the measure and judges it, without counting for the verdict.
    confidence: of this measure's interval, where it is not the file's.
    """

    better: Literal["higher", "lower"] | None = None
    worse_by: Annotated[float, msgspec.Meta(gt=0, lt=10)] | None = None
    at_most: float | None = None
    gate: bool = True
    confidence: Annotated[float, msgspec.Meta(ge=0.5, lt=1)] | None = None

    @property
    def limit(self) -> float:
        """The worst ratio, or value, that passes."""
        if self.at_most is not None:
            return self.at_most
        assert self.worse_by is not None
        return 1 - self.worse_by if self.better == "higher" else 1 + self.worse_by


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A thresholds file. measures: name, or pattern with `*`, → threshold; the first match applies.

    confidence: of the interval, both sides together. resamples, seed: of the bootstrap.
    """

    version: Literal[1] = 1
    confidence: Annotated[float, msgspec.Meta(ge=0.5, lt=1)] = 0.95
    resamples: Annotated[int, msgspec.Meta(ge=100, le=1_000_000)] = 2000
    seed: int = 1
    measures: Annotated[dict[str, Threshold], msgspec.Meta(min_length=1)]

    def of(self, measure: str) -> Threshold | None:
        """The threshold of a measure; None if there is none."""
        return next((one for pattern, one in self.measures.items() if fnmatchcase(measure, pattern)), None)


def _check_document(document: dict[Any, Any], root: yaml.MappingNode) -> None:
    """Raises GateError for what is wrong with one key, with its line."""
    lines = _lines(root)
    for key in document:
        if key not in Thresholds.__struct_fields__:
            raise GateError(_no_such_key("", key, lines[key,], Thresholds.__struct_fields__))
    if document.get("version", VERSION) != VERSION:
        raise GateError(f"line {lines['version',]}: version {document['version']!r} is not known here, only {VERSION}")
    measures = document.get("measures")
    for name, given in measures.items() if isinstance(measures, dict) else ():
        path, line = f"measures.{name}", lines["measures", name]
        for key in given if isinstance(given, dict) else ():
            if key not in Threshold.__struct_fields__:
                raise GateError(_no_such_key(f"{path}.", key, lines["measures", name, key],
                                             Threshold.__struct_fields__))
        try:
            _check(msgspec.convert(given, Threshold))
        except msgspec.ValidationError as error:
            said, _, key = str(error).partition(" - at `$")
            key = key.strip("`.")
            raise GateError(f"line {lines.get(('measures', name, key), line)}: {path}{'.' * bool(key)}{key}: "
                            f"{said[0].lower()}{said[1:]}") from None
        except GateError as error:
            raise GateError(f"line {line}: {path}: {error}") from None


def _check(one: Threshold) -> None:
    """Raises GateError for missing or contradicting keys."""
    relative = one.better is not None and one.worse_by is not None
    if relative == (one.at_most is not None) or (one.better is None) != (one.worse_by is None):
        raise GateError("give either `better` (higher or lower) with `worse_by` (a fraction, such as 0.15), or "
                        "`at_most` (a number)")
    if one.at_most is not None and not math.isfinite(one.at_most):
        raise GateError(f"at_most {one.at_most} bounds nothing: give a number")
    if one.better == "higher" and one.limit <= 0:
        raise GateError("what is better when it is higher can become worse by less than 1")


def _no_such_key(before: str, key: object, line: int, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(key), known, 1)
    return f"line {line}: {before}{key}: there is no such key; " + (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}")


def _lines(node: yaml.Node, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], int]:
    """Of each key of mappings in mappings, by its path: its line, from 1 on."""
    found: dict[tuple[Any, ...], int] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        place = (*path, yaml.SafeLoader("").construct_object(key))
        found |= {place: key.start_mark.line + 1} | _lines(value, place)
    return found


def load_thresholds(path: Path) -> Thresholds:
    """Read and check a thresholds file. Raises GateError: one sentence with the file, the line and the key."""
    try:
        content = path.read_text(encoding="utf-8")
        document = yaml.safe_load(content)
        root: yaml.Node | None = yaml.compose(content, Loader=yaml.SafeLoader)
        if isinstance(document, dict) and isinstance(root, yaml.MappingNode):
            _check_document(document, root)
        thresholds = msgspec.convert(document, Thresholds)
    except OSError as error:
        raise GateError(f"the thresholds {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise GateError(f"the thresholds {path} are not text in UTF-8") from None
    except yaml.YAMLError as error:
        raise GateError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except (msgspec.ValidationError, GateError) as error:
        raise GateError(f"{path}: {error}") from None
    return thresholds


@dataclass(slots=True, frozen=True)
class Pair:
    """One repetition of both: measure → value; None or absent when it was not measured."""

    baseline: Mapping[str, float | None]
    candidate: Mapping[str, float | None]


@dataclass(slots=True, frozen=True, kw_only=True)
class Finding:
    """The finding for one measure.

    ratio, low, high: median of candidate / baseline and its interval; with an absolute bound there is no ratio, and low
    and high are the candidate's smallest and largest value. baseline, candidate: medians. pairs: how many count.
    gated: whether the verdict depends on it.
    """

    measure: str
    outcome: Outcome
    gated: bool
    pairs: int
    limit: float
    better: str | None
    baseline: float | None = None
    candidate: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""


@dataclass(slots=True, frozen=True)
class Verdict:
    """All findings, in the order of the measures."""

    findings: tuple[Finding, ...]

    @property
    def outcome(self) -> Outcome:
        """Of the gated measures: regression if any has it, else noise if any has it, else pass if any passed, else
        nothing."""
        said = {finding.outcome for finding in self.findings if finding.gated}
        order: tuple[Outcome, ...] = ("regression", "noise", "pass")
        return next((outcome for outcome in order if outcome in said), "nothing")

    @property
    def status(self) -> int:
        """Exit status: 0 pass, with or without noise in other measures; 1 regression; 2 nothing was proved: nothing was
        judged, or all gated measures are noise."""
        if self.outcome == "regression":
            return REGRESSED
        proved = any(finding.gated and finding.outcome == "pass" for finding in self.findings)
        return PASSED if proved else NOTHING

    def as_json(self) -> dict[str, Any]:
        return {"outcome": self.outcome, "status": self.status, "findings": [asdict(one) for one in self.findings]}


def judge(pairs: Sequence[Pair], thresholds: Thresholds) -> Verdict:
    """The verdict over the pairs, in any order; the same pairs always give the same verdict.

    A measure that no threshold names is left out; one that a threshold without `*` names and no pair has is "nothing".
    """
    names = dict.fromkeys(name for pair in pairs for side in (pair.baseline, pair.candidate) for name in side)
    names |= dict.fromkeys(name for name in thresholds.measures if not any(sign in name for sign in "*?["))
    findings = []
    for name in names:
        threshold = thresholds.of(name)
        if threshold is not None:
            look = _absolute if threshold.at_most is not None else _relative
            findings.append(look(name, pairs, threshold, thresholds))
    return Verdict(tuple(findings))


def _absolute(name: str, pairs: Sequence[Pair], threshold: Threshold, _: Thresholds) -> Finding:
    """Checks a bound for every run: a single loss counts, without statistics."""
    values = _known(pair.candidate.get(name) for pair in pairs)
    before = _known(pair.baseline.get(name) for pair in pairs)
    said: dict[str, Any] = {"measure": name, "gated": threshold.gate, "pairs": len(values), "limit": threshold.limit,
                            "better": None, "baseline": statistics.median(before) if before else None}
    if not values:
        return Finding(outcome="nothing", why="no run of the candidate has it", **said)
    over = sum(value > threshold.limit for value in values)
    return Finding(outcome="regression" if over else "pass", candidate=statistics.median(values), low=min(values),
                   high=max(values), why=f"above {threshold.limit:g} in {over} of {len(values)} runs" if over else "",
                   **said)


def _relative(name: str, pairs: Sequence[Pair], threshold: Threshold, thresholds: Thresholds) -> Finding:
    both = [(before, after) for pair in pairs
            for before, after in [(pair.baseline.get(name), pair.candidate.get(name))]
            if before is not None and after is not None and 0 < before < math.inf and 0 <= after < math.inf]
    said: dict[str, Any] = {"measure": name, "gated": threshold.gate, "pairs": len(both), "limit": threshold.limit,
                            "better": threshold.better}
    if not both:
        return Finding(outcome="nothing", why="no pair has a value on both sides that can be divided", **said)
    ratios = [after / before for before, after in both]
    said |= {"ratio": statistics.median(ratios), "baseline": statistics.median(before for before, _ in both),
             "candidate": statistics.median(after for _, after in both)}
    # Random numbers are generated separately for each measure, so that other measures do not change its result.
    confidence = threshold.confidence or thresholds.confidence
    bounds = interval(ratios, confidence, thresholds.resamples, random.Random(f"{thresholds.seed} {name}"))
    if bounds is None:
        needed = pairs_needed(confidence)
        return Finding(outcome="noise", **said,
                       why=f"too few pairs: {len(both)}, and {confidence:.0%} confidence needs {needed}")
    low, high = bounds
    worst, best = (low, high) if threshold.better == "higher" else (-high, -low)
    limit = threshold.limit if threshold.better == "higher" else -threshold.limit
    outcome: Outcome = "regression" if best < limit else "pass" if worst >= limit else "noise"
    return Finding(outcome=outcome, low=low, high=high, **said,
                   why="the interval reaches over the limit" if outcome == "noise" else "")


def _known(values: Any) -> list[float]:
    return [value for value in values if value is not None and not math.isnan(value)]


def interval(values: Sequence[float], confidence: float, resamples: int,
             chance: random.Random) -> tuple[float, float] | None:
    """An interval that holds the median of what the values are drawn from, with at least that confidence; or None.

    The percentiles of the medians of `resamples` bootstrap samples. Of a handful of values that is known to be too
    narrow, so it is widened to the interval of the sign test, whose confidence is exact for every distribution: from
    the k-th smallest to the k-th largest value, k as large as the confidence allows. None when not even k = 1 has it.
    """
    ordered = sorted(values)
    count = len(ordered)
    rank = _rank(count, confidence)
    if rank == 0:
        return None
    medians = sorted(statistics.median(chance.choices(ordered, k=count)) for _ in range(resamples))
    cut = int(resamples * (1 - confidence) / 2)
    return min(ordered[rank - 1], medians[cut]), max(ordered[count - rank], medians[resamples - 1 - cut])


def _rank(count: int, confidence: float) -> int:
    """The largest k with which the probability that fewer than k of `count` values are on one side of the median is at
    most half of 1 - confidence."""
    left = (1 - confidence) / 2 * (1 + 1e-12)
    rank, below = 0, 0.0
    while rank < count // 2 and (below := below + math.comb(count, rank) / 2**count) <= left:
        rank += 1
    return rank


def pairs_needed(confidence: float) -> int:
    """The smallest number of pairs that allows a finding at that confidence."""
    count = 2
    while _rank(count, confidence) == 0:
        count += 1
    return count
