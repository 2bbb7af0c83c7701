"""Requests about a queue whose partitions are queues of their own, on several nodes: they are asked of each partition,
and the answers put together, so that there is one answer of the shape that a queue of one node has.

    request ─► QueueDivided ─┬─► the same of $part-0-2-… : here, or at the node that has it ─┐
                             └─► the same of $part-1-2-… : …                                 ┴─► one answer

What only looks leaves out partitions whose node is away, and says so ("missing"); what changes something is refused
then, before anything has happened.
"""
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from fluxmq.admin.answers import Call, json_answer
from fluxmq.admin.bodies import Message, Messages, Replay, Seek, to_publish
from fluxmq.admin.elsewhere import ELSEWHERE
from fluxmq.admin.http import Answer
from fluxmq.admin.words import number, truth
from fluxmq.admin.words import partition as read_partition
from fluxmq.engine.ports.operations import Operation
from fluxmq.engine.ports.queues import QueueDivided, QueueElsewhere, QueueRefused, QueuesPort
from fluxmq.model import limits

__all__ = ["DIVIDED", "Divided", "Paged", "state_of", "sum_entries"]

DIVIDED = ("divided", "partly away")  # states of such a queue

NUMBERS = ("messages", "bytes", "ready", "unsettled", "groups", "delayed")
MAXIMA = ("consumers", "groups")  # each of these is one of all partitions
LANE_SHIFT = 56  # of an offset: its lane (engine/queues)

_Body = dict[str, Any]
_OF_GROUP = ("claimed", "unsettled", "returned", "lag")     # counts that are sums over its partitions
_NO_MEMBER: _Body = {"held": 0, "limited": False, "oldest_s": None}


class Paged(NamedTuple):
    """A page of messages of several partitions."""

    messages: list[_Body]
    next: str
    missing: list[dict[str, str]]


class _Refused(Exception):
    """A partition refuses: this is the answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


def sum_entries(whole: _Body, parts: Iterable[_Body | None]) -> _Body:
    """The entry of a queue with the numbers of those of its partitions that are known."""
    known = [part for part in parts if part is not None and part.get("messages") is not None]
    if not known:
        return whole
    numbers = {name: max(part[name] for part in known) if name in MAXIMA else sum(part[name] for part in known)
               for name in {*NUMBERS, *MAXIMA}}
    damage = next((part["damage"] for part in known if part["damage"]), "")
    return whole | numbers | {"damage": damage}


def state_of(whole: str, parts: Iterable[tuple[str, str]]) -> str:
    """What people read as the state of such a queue: if all partitions are at one node, that of a queue there. parts:
    node and state of each partition."""
    nodes, states = map(set, zip(*parts, strict=True))
    if len(nodes) > 1:
        return whole
    return "damaged" if "damaged" in states else min(states)


class Divided:
    """Machine. handle: answers a request to this node."""

    def __init__(self, queues: QueuesPort, handle: Callable[[Operation], Awaitable[Any]]) -> None:
        self._queues = queues
        self._handle = handle

    async def answer(self, divided: QueueDivided, call: Call, segments: list[str]) -> Answer:
        """segments: of the path, behind the name of the queue. Raises QueueRefused."""
        method, what = call.operation.method, segments[0] if segments else ""
        if what == "dlq":
            what = "/".join(segments)
        verb = {("GET", "dlq"): self._browse_dead, ("POST", "dlq/replay"): self._replay_dead,
                ("POST", "dlq/purge"): self._purge_dead,
                ("GET", ""): self._describe, ("DELETE", ""): self._delete, ("POST", "purge"): self._purge,
                ("POST", "messages"): self._publish, ("GET", "messages"): self._browse, ("GET", "logs"): self._logs,
                ("GET", "groups"): self._groups, ("POST", "groups"): self._seek,
                ("DELETE", "groups"): self._delete_group}.get((method, what))
        if verb is None:
            raise divided
        try:
            return await verb(divided, call)
        except _Refused as refused:
            return refused.answer

    # ------------------------------------------------------------------ asking partitions

    async def _ask(self, divided: QueueDivided, partition: int, call: Call, *, suffix: str | None = None,
                   query: dict[str, Any] | None = None, body: bytes | None = None) -> Answer:
        """The same of a partition. suffix: of the path, behind the name of the queue."""
        operation, name = call.operation, divided.parts[partition]
        if suffix is None:
            suffix = "/".join(operation.target.partition("?")[0].split("/")[5:])
        asked = {**call.query, **(query or {})}
        asked["namespace"] = name.namespace
        target = f"/api/v1/queues/{quote(name.own, safe='')}{'/' if suffix else ''}{suffix}?" + urlencode(
            {word: value for word, value in asked.items() if value is not None})
        answer = await self._handle(Operation(operation.method, target, operation.body if body is None else body,
                                              operation.pages))
        assert isinstance(answer, Answer)
        return answer

    async def _ask_dead(self, divided: QueueDivided, partition: int, call: Call, *,
                        query: dict[str, Any] | None = None, body: bytes | None = None) -> Answer:
        """The same, of one partition of the dead-letter queue, which `divided` is."""
        operation = call.operation
        path, _, words = operation.target.partition("?")
        asked = {**dict(parse_qsl(words)), **(query or {}), "partition": partition}
        answer = await self._handle(Operation(operation.method, f"{path}?{urlencode(asked)}",
                                              operation.body if body is None else body))
        assert isinstance(answer, Answer)
        return answer

    async def _all(self, divided: QueueDivided, call: Call, **how: Any) -> list[Answer]:
        return list(await asyncio.gather(*(self._ask(divided, at, call, **how) for at in range(len(divided.parts)))))

    async def _each(self, divided: QueueDivided, call: Call, **how: Any) -> list[_Body]:
        """Of what changes something, and of what is useless in part: the bodies of all. Nothing is asked while a
        partition is away."""
        if divided.missing:
            partition, node = next(iter(divided.missing.items()))
            raise QueueElsewhere(node or "?", f"partition {partition} is at node {node or '?'}, which is away",
                                 "start it, and try again when it serves", away=True)
        return [_read(answer) for answer in await self._all(divided, call, **how)]

    async def _those_there(self, divided: QueueDivided, call: Call,
                           **how: Any) -> tuple[dict[int, _Body], list[dict[str, str]]]:
        """Of what only looks: the bodies by partition, and who has not answered."""
        found: dict[int, _Body] = {}
        missing = []
        for at, answer in enumerate(await self._all(divided, call, **how)):
            if answer.status == 503:
                why = msgspec.json.decode(answer.body)
                missing.append({"node": divided.missing.get(at, "") or why.get("node", ""), "partition": str(at),
                                "why": why.get("detail", "")})
            elif (body := _read(answer)).get("state") in ELSEWHERE:     # what this node knows of it
                why = body.get("missing", [{"node": body["node"], "why": f"node {body['node']} is away"}])
                missing += [one | {"partition": str(at)} for one in why]
            else:
                found[at] = body
        return found, missing

    # ------------------------------------------------------------------ what is asked

    async def _describe(self, divided: QueueDivided, call: Call) -> Answer:
        found, missing = await self._those_there(divided, call)
        whole = self._queues.describe(call.names[0])
        parts = []
        for entry in whole["partition_list"]:
            one = found.get(entry["partition"])
            parts.append(entry if one is None else entry | one["partition_list"][0] | {
                "partition": entry["partition"]})
        answer = sum_entries(whole, found.values()) | {
            "partition_list": parts, "group_list": _together(found, "group_list"),
            "counts": _sums(one["counts"] for one in found.values()),
            "state": state_of(whole["state"], ((entry["node"], found.get(entry["partition"], entry)["state"])
                                               for entry in whole["partition_list"]))}
        return json_answer(200, answer | ({"missing": missing} if missing else {}))

    async def _delete(self, divided: QueueDivided, call: Call) -> Answer:
        """With conditions, which no partition decides alone."""
        get = call._replace(operation=msgspec.structs.replace(call.operation, method="GET", body=b""), query={})
        found = await self._each(divided, get)
        name, whole = call.names[0], sum_entries({}, found)
        if truth(call.query, "if_unused") and whole["consumers"]:
            raise QueueRefused("conflict", f"queue {name} has {whole['consumers']} consumers")
        waiting = whole["ready"] + whole["unsettled"] + whole["delayed"]
        if truth(call.query, "if_empty") and waiting:
            raise QueueRefused("conflict", f"queue {name} has {waiting} messages")
        target = f"/api/v1/queues/{quote(divided.whole.own, safe='')}?" + urlencode({
            "namespace": divided.whole.namespace})
        answer = await self._handle(Operation("DELETE", target))
        assert isinstance(answer, Answer)
        return answer

    async def _purge(self, divided: QueueDivided, call: Call) -> Answer:
        each = await self._each(divided, call)
        return json_answer(200, {what: sum(one[what] for one in each) for what in ("purged", "unsettled")})

    async def _publish(self, divided: QueueDivided, call: Call) -> Answer:
        """Each partition gets its messages at once. When one refuses, others may have theirs."""
        body = msgspec.json.decode(call.body, type=_Body)
        given = body.get("messages", [body])
        read = msgspec.convert(body, Messages).messages if "messages" in body else [msgspec.convert(body, Message)]
        if not 1 <= len(read) <= limits.ADMIN_MESSAGES_MAX:
            raise QueueRefused("invalid", f"1 to {limits.ADMIN_MESSAGES_MAX} messages at once, not {len(read)}")
        by_partition: dict[int, list[int]] = {}
        for at, message in enumerate(read):
            by_partition.setdefault(self._queues.partition_for(call.names[0], to_publish(message)), []).append(at)
        answers = await asyncio.gather(*(
            self._ask(divided, partition, call, body=msgspec.json.encode({"messages": [given[at] for at in numbers]}))
            for partition, numbers in by_partition.items()))
        placed: dict[int, _Body] = {}
        refused: tuple[int, _Body] | None = None
        for (partition, numbers), answer in zip(by_partition.items(), answers, strict=True):
            told = msgspec.json.decode(answer.body, type=_Body)
            for at, place in zip(numbers, told.get("messages", ()), strict=False):
                placed[at] = place | ({"partition": partition} if "partition" in place else {})
            if answer.status >= 400:
                refused = refused or (answer.status, told)
        done = {"accepted": len(placed), "messages": [placed[at] for at in sorted(placed)]}
        return json_answer(202, done) if refused is None else json_answer(refused[0], refused[1] | done)

    async def page(self, divided: QueueDivided, call: Call, position: str, count: int,
                   partition: int | None, *, dead: bool = False) -> Paged:
        """A page of messages. position: as QueuesPort.browse; `at:` is followed by the positions of all lanes of all
        partitions, as for a queue of one node. Raises QueueRefused."""
        lanes = divided.lanes
        asked = range(len(divided.parts)) if partition is None else [partition]
        if partition is not None and not 0 <= partition < len(divided.parts):
            raise QueueRefused("not_found", f"there are {len(divided.parts)} partitions, from 0 on")
        words = [position] * len(asked)
        if position.startswith("at:"):
            slots = position[3:].split(",")
            if len(slots) != len(asked) * lanes:
                raise QueueRefused("invalid", "this position is of another browse")
            words = [_word(slots[at * lanes:(at + 1) * lanes]) for at in range(len(asked))]
        get = call._replace(operation=msgspec.structs.replace(call.operation, method="GET", body=b""))
        answers = await asyncio.gather(*(
            self._ask_dead(divided, at, get, query={"from": word, "count": count}) if dead else
            self._ask(divided, at, get, suffix="messages", query={"from": word, "count": count, "partition": None})
            for at, word in zip(asked, words, strict=True)))
        messages: list[_Body] = []
        slots, missing = [], []
        for at, word, answer in zip(asked, words, answers, strict=True):
            if answer.status == 503:
                missing.append({"node": divided.missing.get(at, ""), "partition": str(at),
                                "why": msgspec.json.decode(answer.body).get("detail", "")})
                slots += word[3:].split(",") if word.startswith("at:") else [word] * lanes
                continue
            page = _read(answer)
            following = page["next"][3:].split(",")
            for message in page["messages"]:
                if len(messages) < count:
                    messages.append(message | {"partition": at})
                else:                           # it comes with the next page
                    lane = message["offset"] >> LANE_SHIFT
                    following[lane] = str(min(int(following[lane]), message["offset"]))
            slots += following
        return Paged(messages, "at:" + ",".join(slots), missing)

    async def _browse(self, divided: QueueDivided, call: Call) -> Answer:
        if call.operation.pages:
            return await self._browse_bytes(divided, call)
        count = number(call.query, "count", 10, 1, limits.ADMIN_MESSAGES_MAX)
        assert count is not None
        page = await self.page(divided, call, call.query.get("from", "first"), count, read_partition(call.query))
        return json_answer(200, {"messages": page.messages, "next": page.next} |
                           ({"missing": page.missing} if page.missing else {}))

    async def _browse_bytes(self, divided: QueueDivided, call: Call) -> Answer:
        partition = read_partition(call.query) or 0
        if partition >= len(divided.parts):
            raise QueueRefused("not_found", f"there are {len(divided.parts)} partitions, from 0 on")
        identity = call.query.get("identity")
        if identity is not None and identity != divided.identity:
            raise QueueRefused("conflict", f"queue {call.names[0]} was deleted and made again")
        return await self._ask(divided, partition, call, query={
            "partition": 0, "identity": None if identity is None else divided.identities[partition]})

    async def _browse_dead(self, divided: QueueDivided, call: Call) -> Answer:
        count = number(call.query, "count", 10, 1, limits.ADMIN_MESSAGES_MAX)
        assert count is not None
        page = await self.page(divided, call, call.query.get("from", "first"), count, None, dead=True)
        return json_answer(200, {"messages": page.messages, "next": page.next} |
                           ({"missing": page.missing} if page.missing else {}))

    async def _replay_dead(self, divided: QueueDivided, call: Call) -> Answer:
        """Of each partition its own of those that are named, or the oldest of one after the other."""
        replay, replayed = msgspec.json.decode(call.body or b"{}", type=Replay), 0
        for partition in range(len(divided.parts)):
            if replay.messages is None:
                asked: _Body = {"count": replay.count - replayed}
            else:
                asked = {"messages": [(0, offset) for at, offset in replay.messages if at == partition]}
            if asked.get("messages") or asked.get("count"):
                replayed += _read(await self._ask_dead(divided, partition, call, body=msgspec.json.encode(asked)))[
                    "replayed"]
        return json_answer(200, {"replayed": replayed})

    async def _purge_dead(self, divided: QueueDivided, call: Call) -> Answer:
        return json_answer(200, {"purged": sum([
            _read(await self._ask_dead(divided, at, call))["purged"] for at in range(len(divided.parts))])})

    async def _logs(self, divided: QueueDivided, call: Call) -> Answer:
        """All partitions must answer: a job that reads the queue would miss the others."""
        found = await self._each(divided, call)
        logs = [log | {"partition": at} for at, one in enumerate(found) for log in one["logs"]]
        return json_answer(200, {"name": call.names[0], "type": found[0]["type"], "logs": logs,
                                 "identity": divided.identity})

    async def _groups(self, divided: QueueDivided, call: Call) -> Answer:
        found, missing = await self._those_there(divided, call)
        return json_answer(200, {"groups": _together(found, "groups")} | ({"missing": missing} if missing else {}))

    async def _seek(self, divided: QueueDivided, call: Call) -> Answer:
        """A partition that refuses, because its consumers have messages in hand, may do so behind others."""
        seek = msgspec.json.decode(call.body, type=Seek)
        places: list[_Body] = []
        body = msgspec.json.encode({"position": seek.position, "partition": None})
        if seek.partition is None:
            found = await self._each(divided, call, body=body)
        elif 0 <= seek.partition < len(divided.parts):
            found = [_read(await self._ask(divided, seek.partition, call, body=body))]
            get = call._replace(operation=msgspec.structs.replace(call.operation, method="GET", body=b""))
            others, _ = await self._those_there(divided, get, suffix="groups")
            places = [place for group in _together(others, "groups")
                      if call.names[1] in (group["name"], f"{group['name']}/{group['filter']}")
                      for place in group["positions"] if place["partition"] != seek.partition]
        else:
            raise QueueRefused("not_found", f"queue {call.names[0]} has {len(divided.parts)} partitions, from 0 on")
        first = seek.partition or 0
        places += [place | {"partition": first + at} for at, one in enumerate(found) for place in one["positions"]]
        return json_answer(200, {"positions": sorted(places, key=lambda place: place["partition"])})

    async def _delete_group(self, divided: QueueDivided, call: Call) -> Answer:
        await self._each(divided, call)
        return json_answer(200, {"deleted": True})


def _read(answer: Answer) -> _Body:
    if answer.status >= 400:
        raise _Refused(answer)
    return msgspec.json.decode(answer.body, type=_Body)


def _word(slots: list[str]) -> str:
    """The position of one partition. A word is that of one that has not answered yet."""
    return "at:" + ",".join(slots) if all(slot.isdigit() for slot in slots) else slots[0]


def _sums(bodies: Iterable[_Body]) -> _Body:
    found: _Body = {}
    for body in bodies:
        for name, value in body.items():
            found[name] = found.get(name, 0) + value
    return found


def _together(found: dict[int, _Body], key: str) -> list[_Body]:
    """Groups, each of the partitions that have it: members by their clients."""
    groups: dict[tuple[str, str], _Body] = {}
    for at, one in found.items():
        for group in one[key]:
            places = [place | {"partition": at} for place in group["positions"]]
            known = groups.setdefault((group["name"], group["filter"]), group | {
                **dict.fromkeys(_OF_GROUP, 0), "positions": [], "members": []})
            for count in _OF_GROUP:
                known[count] += group[count]
            known["positions"] += places
            members = {member["client"]: member for member in known["members"]}
            for client, each in _by_client(group["members"]).items():
                _add(members.setdefault(client, {"client": client, **_NO_MEMBER}), each)
            known["members"] = list(members.values())
    return [groups[at] for at in sorted(groups)]


def _by_client(members: list[_Body]) -> dict[str, _Body]:
    found: dict[str, _Body] = {}
    for member in members:
        _add(found.setdefault(member["client"], dict(_NO_MEMBER)), member)
    return found


def _add(mine: _Body, member: _Body) -> None:
    mine["held"] += member["held"]
    mine["limited"] = mine["limited"] or member["limited"]
    mine["oldest_s"] = max((one for one in (mine["oldest_s"], member["oldest_s"]) if one is not None), default=None)
