"""Recordings of the nodes of one cluster, read as one.

    recording = open_recordings("broker-1", "broker-2", "broker-3")     # one directory per node
    recording = open_recordings("rush-hour")                            # a directory that holds one per node
    recording = open_recordings("single")                               # a recording by itself

Numbers of rows and of connections are a node's own, so with n recordings the row `seq` of the recording at index i is
`seq * n + i` here, and so is `connection`, but that 0 stays 0. Rows come in the order of their times, those of one
recording in its order. docs/internals/recording.md, "Recordings of a cluster".
"""
from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluxmq.record.manifest import MANIFEST, MANIFEST_1, Broker, Machine, Manifest, Part, RecordingError
from fluxmq.record.options import ClusterAbout
from fluxmq.record.reading import Recording, open_recording
from fluxmq.record.schema import COLUMNS, SCHEMA

__all__ = ["OF_A_NODE", "ClusterRecording", "open_recordings"]

OF_A_NODE = "amqp091"           # the protocol whose clients have no name but that of their connection
NUMBERED = ("seq", "answers", "connection")


class ClusterRecording(Recording):
    """Value. As a Recording; nodes: the recordings, sorted by node and start. manifest: what they have in common, and
    sums. common: (begin, end), ns since 1970: when all of them recorded. missing: nodes of the cluster of which there
    is none."""

    def __init__(self, nodes: list[Recording]) -> None:
        self.common = _check(nodes)
        self.recordings = sorted(nodes, key=lambda one: (one.manifest.cluster.node, one.manifest.started))
        parts = [part for one in self.recordings for part in one.parts]
        super().__init__(Path(_names(self.recordings)), _manifest(self.recordings), parts,
                         [rows for one in self.recordings for rows in one.part_rows])

    @property
    def nodes(self) -> list[Recording]:
        """See Recording."""
        return self.recordings

    @property
    def missing(self) -> list[str]:
        there = {one.manifest.cluster.node for one in self.recordings}
        return sorted({name for one in self.recordings for name in one.manifest.cluster.nodes} - there)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, merged by time. RecordingError when a part is damaged within."""
        names = [column.name for column in COLUMNS] if columns is None else list(columns)
        sources = [_Source(one, index, len(self.recordings), names) for index, one in enumerate(self.recordings)]
        while live := [source for source in sources if source.fill()]:
            bound = min(source.last for source in live)
            taken = [source.take(bound) for source in live]
            table = pa.Table.from_batches([batch for batch, _ in taken]).unify_dictionaries()
            order = np.argsort(np.concatenate([keys for _, keys in taken]), kind="stable")
            yield from table.combine_chunks().take(pa.array(order)).to_batches()


class _Source:
    """One recording while it is merged. last: the latest time of the rows at hand. Rows are in the order of the node,
    which is not always that of their times (a row `opened` may come late): none is put before an earlier row of its
    recording."""

    def __init__(self, recording: Recording, index: int, count: int, names: list[str]) -> None:
        self.last = 0
        self._index, self._count, self._names = index, count, names
        self._node = recording.manifest.cluster.node
        read = list(dict.fromkeys([*names, "time_ns", "connection", "protocol"]))
        self._schema = pa.schema([SCHEMA.field(name) for name in read])
        self._batches = recording.batches(read)
        self._rows: pa.RecordBatch | None = None
        self._keys = np.empty(0, np.int64)
        self._at = 0

    def fill(self) -> bool:
        """Whether there are rows; reads the next ones if none are at hand."""
        while self._rows is None or self._at == len(self._keys):
            batch = next(self._batches, None)
            if batch is None:
                return False
            if batch.num_rows:
                batch = batch.cast(self._schema)
                times = batch.column("time_ns").to_numpy()
                self._keys, self._at = np.maximum.accumulate(np.maximum(times, self.last)), 0
                self._rows, self.last = self._of_all(batch), int(self._keys[-1])
        return True

    def take(self, bound: int) -> tuple[pa.RecordBatch, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """The rows up to that time, and what they are sorted by."""
        assert self._rows is not None
        begin, self._at = self._at, int(np.searchsorted(self._keys, bound, "right"))
        return self._rows.slice(begin, self._at - begin), self._keys[begin:self._at]

    def _of_all(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With numbers, and names of connections, that no other node has given."""
        columns = {name: batch.column(name) for name in self._names}
        for name in set(NUMBERED) & set(columns):
            made = pc.add(pc.multiply(columns[name], self._count), self._index)
            columns[name] = made if name != "connection" else pc.if_else(
                pc.equal(columns[name], 0), pa.scalar(0, pa.int64()), made)
        if "client_id" in columns:
            theirs = pc.fill_null(pc.equal(batch.column("protocol").cast(pa.string()), OF_A_NODE), False)
            if pc.any(theirs).as_py():
                plain = columns["client_id"].cast(pa.string())
                named = pc.binary_join_element_wise(plain, self._node, "@")
                columns["client_id"] = pc.if_else(theirs, named, plain).dictionary_encode()
        return pa.RecordBatch.from_arrays([columns[name] for name in self._names],
                                          schema=pa.schema([SCHEMA.field(name) for name in self._names]))


# ── which recordings are one ─────────────────────────────────────────────────────────────────────────────────


def _is_recording(directory: Path) -> bool:
    return (directory / MANIFEST).exists() or (directory / MANIFEST_1).exists()


def _below(directory: Path) -> list[Path]:
    """The recordings that a directory holds, if it is none itself."""
    try:
        if not directory.is_dir() or _is_recording(directory):
            return []
        return sorted(one for one in directory.iterdir() if one.is_dir() and _is_recording(one))
    except OSError:
        return []           # what is wrong with it is said when it is opened


def open_recordings(*paths: str | Path) -> Recording:
    """What is in these directories, as one recording: each is a recording, or holds some.

    Raises RecordingError: as open_recording; and when several are not of different nodes of one cluster at one time.
    """
    found = [one for path in map(Path, paths) for one in (_below(path) or [path])]
    opened = [open_recording(path) for path in found]
    return opened[0] if len(opened) == 1 else ClusterRecording(opened)


def _names(recordings: Sequence[Recording]) -> str:
    """The directory that holds them all, or their names."""
    above = {one.path.parent for one in recordings}
    if len(above) == 1 and str(next(iter(above))) != ".":
        (place,) = above
        return str(place) if len(_below(place)) == len(recordings) else f"{place}/{{{_listed(recordings)}}}"
    return ", ".join(str(one.path) for one in recordings)


def _listed(recordings: Sequence[Recording]) -> str:
    return ",".join(one.path.name for one in recordings)


def _span(recording: Recording) -> tuple[int, int]:
    """From when to when it recorded, ns since 1970. One that has no end runs, or was cut off: up to its last row."""
    manifest = recording.manifest
    end = manifest.ended or max((part.last_time for part in manifest.parts), default=manifest.started)
    return manifest.started, max(end, manifest.started)


def _when(nanoseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(nanoseconds // 1_000_000_000)) + " UTC"


def _check(recordings: Sequence[Recording]) -> tuple[int, int]:
    """When all nodes were recorded. Raises RecordingError."""
    first = recordings[0]
    for one in recordings:
        cluster = one.manifest.cluster
        if one.manifest.source != "broker":
            raise RecordingError(f"{one.path}: it was made from a capture, which does not say of which node of which "
                                 "cluster it is, so it is read alone")
        if not cluster.id:
            raise RecordingError(f"{one.path}: it does not say of which cluster it is (its broker was in none, had not "
                                 "joined, or is of an earlier version), so it is read alone")
        if cluster.id != first.manifest.cluster.id:
            raise RecordingError(f"{first.path} and {one.path} are of different clusters: {first.manifest.cluster.id} "
                                 f"and {cluster.id}")
    by_node: dict[str, list[Recording]] = {}
    for one in sorted(recordings, key=lambda one: _span(one)):
        before = by_node.setdefault(one.manifest.cluster.node, [])
        if before and before[-1].manifest.id == one.manifest.id:
            raise RecordingError(f"{before[-1].path} and {one.path} are the same recording")
        if before and _span(before[-1])[1] > _span(one)[0]:
            raise RecordingError(f"{before[-1].path} and {one.path} are both of node {one.manifest.cluster.node} at "
                                 f"{_when(_span(one)[0])}: one of them is of another broker")
        before.append(one)
    # A node that was started again has several, one after the other.
    latest = max(by_node.values(), key=lambda its: _span(its[0])[0])[0]
    begin = _span(latest)[0]
    # Of one that still runs all rows may be in its open part, so nobody knows how far it has come.
    ends = {its[-1].path: _span(its[-1])[1] if its[-1].manifest.ended else max(_span(its[-1])[1], begin)
            for its in by_node.values()}
    earliest, end = min(ends.items(), key=lambda one: one[1])
    if begin > end:
        raise RecordingError(f"{earliest} ended at {_when(end)}, and {latest.path} began at {_when(begin)}: nodes "
                             "of a cluster are read together if they were recorded at the same time")
    return begin, end


def _manifest(recordings: Sequence[Recording]) -> Manifest:
    """Of all together: what is the same in each, sums, and lists."""
    manifests = [one.manifest for one in recordings]
    first = manifests[0]

    def each(words: list[str]) -> str:
        return ", ".join(dict.fromkeys(words))

    ends = [manifest.ended for manifest in manifests]
    same = len({manifest.end for manifest in manifests}) == 1
    return Manifest(
        version=max(manifest.version for manifest in manifests), id=" ".join(manifest.id for manifest in manifests),
        broker=Broker(name=each([manifest.broker.name for manifest in manifests]),
                      version=each([manifest.broker.version for manifest in manifests])),
        cluster=ClusterAbout(id=first.cluster.id, node=each([manifest.cluster.node for manifest in manifests]),
                             nodes=tuple(sorted({name for manifest in manifests for name in manifest.cluster.nodes}))),
        config_digest=each([manifest.config_digest for manifest in manifests]),
        machine=Machine(system=each([manifest.machine.system for manifest in manifests]),
                        processors=first.machine.processors, memory=first.machine.memory),
        options={name: value for name, value in first.options.items()
                 if all(manifest.options.get(name) == value for manifest in manifests)},
        started=min(manifest.started for manifest in manifests),
        ended=None if None in ends else max(ended for ended in ends if ended is not None),
        end=first.end if same else each([f"{one.path.name}: {one.manifest.end or 'none'}" for one in recordings]),
        rows=sum(manifest.rows for manifest in manifests),
        lost_entries=sum(manifest.lost_entries for manifest in manifests),
        lost_bytes=sum(manifest.lost_bytes for manifest in manifests),
        filtered_rows=sum(manifest.filtered_rows for manifest in manifests),
        undecoded_bytes=sum(manifest.undecoded_bytes for manifest in manifests),
        parts=[Part(name=f"{one.path.name}/{part.name}", rows=part.rows, bytes=part.bytes, first_time=part.first_time,
                    last_time=part.last_time) for one in recordings for part in one.manifest.parts])
