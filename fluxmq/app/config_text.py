"""The configuration as text: `config show` (YAML with the source of each value) and `config keys` (the schema)."""
from collections.abc import Iterator, Mapping

from fluxmq._core.errors import ConfigError
from fluxmq.app.config import DEFAULT, Provenance
from fluxmq.app.config_given import unknown_key
from fluxmq.app.config_sources import ENVIRONMENT_PREFIX
from fluxmq.app.exit_codes import MEANINGS
from fluxmq.model.config import Config
from fluxmq.model.config_keys import KEYS, SECTIONS, Key, values
from fluxmq.model.config_refused import ALIASES, REFUSED
from fluxmq.model.entry_keys import (
    GROUP_KEYS,
    GROUP_SECTIONS,
    NAMESPACE_KEYS,
    NAMESPACE_SECTIONS,
    PATTERN_KEYS,
    PATTERN_SECTIONS,
    QUEUE_KEYS,
    QUEUE_SECTIONS,
)
from fluxmq.model.queues import REFUSED as QUEUE_REFUSED

__all__ = ["explain", "keys_as_markdown", "keys_as_text", "show"]

_COMMENT_COLUMN = 44
# Keys of the entries of lists.
_ENTRIES = {**GROUP_KEYS, **PATTERN_KEYS, **NAMESPACE_KEYS, **QUEUE_KEYS}


def show(config: Config, provenance: Provenance) -> str:
    """YAML that the loader reads as the same configuration; a comment after each value has its source."""
    lines: list[str] = []
    current = values(config)
    open_sections: list[str] = []
    for path, key in KEYS.items():
        *sections, name = path.split(".")
        shared = 0
        while shared < min(len(sections), len(open_sections)) and sections[shared] == open_sections[shared]:
            shared += 1
        for depth in range(shared, len(sections)):
            lines.append(f"{'  ' * depth}{sections[depth]}:")
        open_sections = sections
        line = f"{'  ' * len(sections)}{name}: {key.format(current[path])}"
        lines.append(f"{line:<{_COMMENT_COLUMN}}  # {provenance.get(path, DEFAULT)}")
    return "\n".join(lines) + "\n"


def keys_as_text() -> str:
    """Every key in four lines."""
    return "\n".join(_key_as_text(key) for key in [*KEYS.values(), *_ENTRIES.values()])


def _key_as_text(key: Key) -> str:
    return f"{key.path}\n    {key.description}\n    allowed: {key.allowed}\n    default: {key.format(key.default)}\n"


def explain(path: str) -> str:
    """Describes one key, every key of a section, or why a key is refused, with its environment variable and --set.

    Raises ConfigError for an unknown key, with the most similar one."""
    path = ALIASES.get(path, path)
    key = KEYS.get(path) or _ENTRIES.get(path)
    if key is not None:
        named = f"    environment: {ENVIRONMENT_PREFIX}{path.replace('.', '__').upper()}\n" if path in KEYS else ""
        return _key_as_text(key) + named
    below = [one for one in [*KEYS.values(), *_ENTRIES.values()] if one.path.startswith((f"{path}.", f"{path}[]."))]
    if below:
        return "\n".join([*([f"{path}\n    {SECTIONS[path]}\n"] if path in SECTIONS else []),
                          *map(_key_as_text, below)])
    raise ConfigError(path, unknown_key(path))


def keys_as_markdown() -> str:
    """The page of the guide."""
    return "\n".join(_markdown()) + "\n"


def _markdown() -> Iterator[str]:
    yield "# Configuration"
    yield ""
    yield "<!-- Written by `fluxmq config keys --markdown`: change the structs, then write it again. -->"
    yield ""
    yield _INTRODUCTION
    slots: dict[tuple[tuple[str, ...], ...], str] = {}
    for section, text in SECTIONS.items():
        keys = [key for key in KEYS.values() if key.path.rpartition(".")[0] == section]
        if not keys:
            continue
        yield f"## {section or 'Without a section'}"
        yield ""
        yield text if section else "At the top of the file."
        yield ""
        same = slots.setdefault(tuple(_row(key) for key in keys), section)
        if same != section:
            yield f"Keys and defaults are those of [{same}](#{same.replace('.', '')})."
        else:
            yield "| key | default | allowed | what it does |"
            yield "|---|---|---|---|"
            for key in keys:
                yield f"| {' | '.join(_row(key))} |"
        yield ""
    yield from _groups()
    yield from _namespaces()
    yield from _queues()
    yield "## Keys that are refused"
    yield ""
    yield "Other versions have them, and here they would do nothing. `*` stands for every name."
    yield ""
    yield "| key | why, and what to write instead |"
    yield "|---|---|"
    for path, reason in REFUSED.items():
        yield f"| `{path}` | {_cell(reason)} |"
    yield ""
    for written, path in ALIASES.items():
        yield f"`{written}` is read as `{path}`."
    yield ""
    yield "## Exit status"
    yield ""
    yield "| status | meaning |"
    yield "|---|---|"
    for status, meaning in MEANINGS.items():
        yield f"| {status} | {_cell(meaning)} |"


def _namespaces() -> Iterator[str]:
    """The keys of an entry of `namespaces`."""
    yield "## An entry of namespaces"
    yield ""
    yield ("`namespaces` is a list; an entry is a name, or has these keys. What they are for: "
           "[namespaces](namespaces.md).")
    yield ""
    yield "```yaml"
    yield "namespaces:"
    yield "  - shop"
    yield "  - {name: plant, limits: {connections: 500, bytes: 1GiB, messages_per_second: 10000}}"
    yield "```"
    yield ""
    yield from _entry("namespace", "namespaces[]", NAMESPACE_KEYS, NAMESPACE_SECTIONS)


def _groups() -> Iterator[str]:
    """The keys of an entry of `cluster.raft.groups` and of `cluster.raft.queues`, and what other versions do with those
    of `cluster.raft`."""
    yield "## An entry of cluster.raft.groups"
    yield ""
    yield "`cluster.raft.groups` has replication groups by name; each has these keys."
    yield ""
    yield "```yaml"
    yield "cluster:"
    yield "  raft:"
    yield "    enabled: true"
    yield "    groups:"
    yield "      hot: {replication_factor: 5, min_in_sync_replicas: 3, shards: 2}"
    yield "    queues:"
    yield '      - {pattern: "order*", group: hot}'
    yield "      - {namespace: shop}"
    yield "```"
    yield ""
    yield from _entry("group", "cluster.raft.groups[]", GROUP_KEYS, GROUP_SECTIONS)
    yield "## An entry of cluster.raft.queues"
    yield ""
    yield (f"`cluster.raft.queues` is a list; an entry is a pattern, or has these keys. "
           f"{PATTERN_SECTIONS['cluster.raft.queues[]']}")
    yield ""
    yield from _entry("pattern", "cluster.raft.queues[]", PATTERN_KEYS, PATTERN_SECTIONS)
    yield "## What other versions do with cluster.raft"
    yield ""
    yield "FluxMQ in Go has these keys too. These mean something else here, or are refused:"
    yield ""
    yield "| key | there | here |"
    yield "|---|---|---|"
    for row in _RAFT_DIFFERENCES:
        yield f"| {' | '.join(_cell(text) for text in row)} |"
    yield ""


def _entry(what: str, prefix: str, keys: Mapping[str, Key], sections: Mapping[str, str]) -> Iterator[str]:
    for section, text in sections.items():
        name = section.removeprefix(prefix).lstrip(".")
        if name:
            yield f"### `{name}` of a {what}"
            yield ""
            yield text
            yield ""
        yield "| key | default | allowed | what it does |"
        yield "|---|---|---|---|"
        for key in keys.values():
            if key.path.rpartition(".")[0] == section:
                row = _row(key)
                yield f"| {row[0]} | {row[1] if key.path != f'{prefix}.name' else 'none'} | {' | '.join(row[2:])} |"
        yield ""


def _queues() -> Iterator[str]:
    """The keys of an entry of `queues`."""
    yield "## An entry of queues"
    yield ""
    yield ("`queues` is a list; each entry has these keys. They are those of `fluxmq queue create --set` and of the "
           "admin socket too. What they are for: [queues and streams](../queues.md).")
    yield ""
    yield from _example()
    yield from _entry("queue", "queues[]", QUEUE_KEYS, QUEUE_SECTIONS)
    yield "### Keys of a queue that are refused"
    yield ""
    yield "| key | why, and what to write instead |"
    yield "|---|---|"
    for path, reason in QUEUE_REFUSED.items():
        yield f"| `{path}` | {_cell(reason)} |"
    yield ""


def _example() -> Iterator[str]:
    yield "```yaml"
    yield "queues:"
    yield "  - name: orders"
    yield '    topics: ["shop/+/orders"]'
    yield "    limits: {max_depth: 100000, message_ttl: 7d}"
    yield "  - {name: audit, type: stream, retention: {max_age: 30d}}"
    yield "```"
    yield ""


def _row(key: Key) -> tuple[str, ...]:
    name = key.path.rpartition(".")[2]
    return f"`{name}`", f"`{key.format(key.default)}`", _cell(key.allowed), _cell(key.description)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# (key of cluster.raft or of queues[], what FluxMQ in Go does with it, what happens here)
_RAFT_DIFFERENCES = (
    ("`distribution_mode`", "replicate, if unset", "forward; replicate is refused in this version"),
    ("`write_policy`", "local, if unset", "forward, if unset"),
    ("`replication_factor`, `min_in_sync_replicas`", "no effect: all peers are replicas, a majority confirms",
     "the number of replicas; how many must have a message at least"),
    ("`ack_timeout`", "bounds the time until the log takes the entry", "bounds the whole wait of a publish"),
    ("`peers`", "the other members and their addresses; none in a group but default: refused",
     "names of the nodes that may have replicas, this one too; addresses are not read; none: any node"),
    ("`bind_addr`", "an address of its own for each group", "no effect: groups share cluster.transport.bind_addr"),
    ("`data_dir`", "a directory of its own for each group", "no effect: one journal, in storage.dir"),
    ("`snapshot_interval`, `snapshot_threshold`", "when a group makes a snapshot",
     "no effect: checkpoints of the journal bound the logs"),
    ("`queues[].replication.mode`", "sync, if unset, also in a group with sync_mode false", "as the group, if unset"),
    ("`queues[].replication.replication_factor`", "no effect",
     "another number than the group's: group default-r<number>; with another group than default refused"),
    ("`queues[].replication.heartbeat_timeout` and other times of Raft", "kept, no effect",
     "refused: they are the group's"),
    ("`groups.<name>.shards`, `cluster.raft.queues`", "not there",
     "several Raft groups in one; queues replicated by their name or namespace"),
)

_INTRODUCTION = """\
Without any configuration the broker listens on this machine only, for MQTT on port 1883, MQTT over WebSocket on 8083,
AMQP 0-9-1 on 5672 and health checks on 8081, and keeps its data in `./fluxmq-data`. A listener with an empty `addr` is
off.

A value comes from the strongest of four sources that gives one:

1. a flag: `fluxmq run --set log.level=debug`
2. an environment variable, in capitals, sections joined by two underscores: `FLUXMQ__LOG__LEVEL=debug`
3. the YAML file of `fluxmq run --config FILE`
4. the default

`fluxmq config show` prints what counts, with the source of every value; `fluxmq config check FILE` says everything that
is wrong with a file, and with the certificates, users and access list that it names; `fluxmq config explain KEY` what a
key is for. A change counts from the next start on; `SIGHUP` reads certificates, users and access list again, and the
broker's log names each other key that was changed.

A further broker on a machine: `fluxmq run --port-offset 1000 --set storage.dir=other` listens on 2883, 9083, 6672 and
9081, and keeps its data in `other`.
Commands, options and arguments are completed by the shell with
`eval "$(_FLUXMQ_COMPLETE=bash_source fluxmq)"` in `~/.bashrc` (`zsh_source` in `~/.zshrc`; fish:
`_FLUXMQ_COMPLETE=fish_source fluxmq | source`).
Unknown keys, keys given twice and values of a wrong kind are refused, wherever they stand.

```yaml
server:
  mqtt:
    tcp:
      plain: {addr: ":1883"}      # every interface
auth:
  users_file: users               # made by: fluxmq user add NAME --file users
storage:
  dir: /var/lib/fluxmq
```

- A duration is a number of seconds or text with units (d, h, m, s, ms, us): `60`, `90s`, `1m30s`, `250ms`.
- A size is a number of bytes or text with one unit (B, KiB, MiB, GiB, TiB): `65536`, `64KiB`.
- An address is `host:port`, `[ipv6]:port`, or `:port` for every interface; port 0 picks a free one, and the start
  message names it. Write addresses with brackets or a leading colon in quotes.
- File names are relative to the working directory.
- An address other than loopback needs a decision who may connect: a users file, a listener that requires certificates,
  or `auth.allow_anonymous: true`. The broker does not start without.
- YAML is read as version 1.2: `true` and `false` are booleans, `yes` and `on` are text.
"""
