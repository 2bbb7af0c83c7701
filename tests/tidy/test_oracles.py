"""Verdicts share nothing with what they judge: oracles import nothing of the product, and what reads the product's
bytes is imported only by tests of that reader itself. Whoever else reads them takes `tests/oracle`.
"""
from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.tree import ROOT, sources

# What reads bytes that the product wrote. Its writers are free: a test may have the product write what an oracle reads.
READERS = {
    "_core/disk/journal_format": {"batch_at", "clean_end", "crc32c", "decode_file_header", "find_batch", "iter_records",
                                  "proof_of_sync", "synced_at"},
    "_core/disk/segment_format": {"SegmentIndex", "batch_at", "batch_holds", "block_of", "decode_header",
                                  "decode_index", "decode_trailer", "due_pairs", "find_batch", "find_time",
                                  "messages_of", "take_messages", "walk"},
    "_core/queue/page": {"decode_page"},
    "_core/raft/messages": {"decode_message"},
    "_core/raft/records": {"entry_of", "replica_of"},
    "_core/raft/wire": {"decode_frame"},
    "_core/queue/rows": {"appends_of", "scan_batch"},
    "storage/journal_files": {"read_batches"},
    "_core/mqtt/decode": {"Decoder", "connect_level", "decode_packet"},
    "_core/mqtt/props": {"decode_properties"},
    "_core/amqp091/fields": {"decode_table"},
    "_core/amqp091/methods": {"decode_method"},
    "_core/amqp091/properties": {"decode_properties"},
}
NAMES = set().union(*READERS.values())
NAMESAKES = {("fluxmq.spark.source.sink", "messages_of")}      # of rows, not of bytes
# Tests of these readers themselves, and what holds one of them against an oracle.
MAY = {
    "tests/fuzz/fuzz_amqp091.py": {"decode_method", "decode_properties", "decode_table"},
    "tests/fuzz/fuzz_client.py": {"Decoder"},       # the client's machine is held against the broker's decoder
    "tests/fuzz/fuzz_decoder.py": {"Decoder", "decode_packet", "decode_properties"},
    "tests/fuzz/fuzz_raft.py": {"decode_frame"},
    "tests/kit/journals.py": {"read_batches"},      # contents(): both readers must have the same
    "tests/kit/raft.py": {"decode_message"},        # the network carries bytes
    "tests/property/test_amqp091_codec.py": {"decode_method", "decode_properties", "decode_table"},
    "tests/property/test_journal.py": {"batch_at", "crc32c", "iter_records", "proof_of_sync"},
    "tests/property/test_mqtt_codec.py": {"Decoder", "decode_packet", "decode_properties"},
    "tests/property/test_queue_rows.py": {"appends_of", "decode_page", "scan_batch"},
    "tests/property/test_raft_groups.py": {"decode_message"},       # so does this one
    "tests/property/test_raft_messages.py": {"decode_message", "entry_of", "replica_of"},
    "tests/property/test_raft_wire.py": {"decode_frame"},
    "tests/property/test_segments.py": {"block_of", "due_pairs", "find_time", "messages_of"},
    "tests/unit/test_amqp091_fields.py": {"decode_method", "decode_properties", "decode_table"},
    "tests/unit/test_amqp091_generated.py": {"decode_method"},
    "tests/unit/test_journal.py": {"crc32c", "decode_file_header"},
    "tests/unit/test_replicas.py": {"entry_of", "replica_of"},
    "tests/unit/test_mqtt_codec.py": {"Decoder", "connect_level", "decode_packet", "decode_properties"},
    "tests/unit/test_mqtt_malformed.py": {"decode_packet"},
    "tests/unit/test_segment_format.py": {"SegmentIndex", "batch_at", "batch_holds", "crc32c", "decode_header",
                                          "decode_index", "decode_trailer", "find_batch", "messages_of", "walk"},
}
ORACLES = [path for path in sources(ROOT / "tests" / "oracle") if path.suffix == ".py"]
TESTS = [path for path in sources(ROOT / "tests") if path.suffix == ".py"]
FOLDERS = {path.relative_to(ROOT / "tests").parts[0] for path in TESTS} | {"fluxmq", "bench"}


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of each import, also within functions; `import a.b` has no name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def foreign(tree: ast.Module) -> set[str]:
    """What an oracle imports of the product, or of tests that may have it from there."""
    return {module for module, _ in imports(tree) if module.split(".")[0] in FOLDERS - {"oracle"}}


def readers(tree: ast.Module) -> set[str]:
    """Readers of the product's that a file uses, from whichever module it has them: imported by name, or taken out of
    a module that it imported."""
    modules = {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
               for alias in node.names if alias.name.split(".")[0] == "fluxmq"}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fluxmq":
            names = {alias.name for alias in node.names if (node.module, alias.name) not in NAMESAKES}
            modules |= {alias.asname or alias.name for alias in node.names}
            found |= NAMES if "*" in names else names & NAMES
    return found | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in NAMES
                    and ast.unparse(node.value) in modules}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_oracles_import_nothing_of_the_product() -> None:
    assert len(ORACLES) > 10
    assert {path.name: found for path in ORACLES if (found := foreign(parse(path)))} == {}


def test_readers_of_the_product_do_not_judge_it() -> None:
    """And no entry of MAY is wider than its file needs."""
    found = {path.relative_to(ROOT).as_posix(): readers(parse(path)) for path in TESTS}
    assert {name: used for name, used in found.items() if used} == MAY


def test_readers_are_what_the_stubs_have() -> None:
    """Every name is there, and nothing that decodes is missing here."""
    stubs = {path.relative_to(ROOT / "fluxmq").with_suffix("").as_posix(): path
             for path in sources(ROOT / "fluxmq" / "_core") if path.suffix == ".pyi"}
    stubs["storage/journal_files"] = ROOT / "fluxmq" / "storage" / "journal_files.py"
    for module, path in stubs.items():
        defined = {node.name for node in parse(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        known = READERS.get(module, set())
        assert known <= defined, module
        assert {name for name in defined if name.startswith("decode_")} <= known, module
    assert READERS.keys() <= stubs.keys()


@pytest.mark.parametrize("text", [
    "from fluxmq._core.disk.journal_format import FILE_HEADER_SIZE, iter_records\n",
    "from fluxmq.storage.journal_files import batch_at as at\n",
    "def verdict():\n    from fluxmq._core.disk.segment_format import messages_of\n",
    "from fluxmq._core.amqp091 import methods as m\n\nm.decode_method(b'')\n",
    "from fluxmq._core.mqtt import props\n\nread = props.decode_properties\n",
    "import fluxmq._core.amqp091.fields\n\nfluxmq._core.amqp091.fields.decode_table(b'')\n",
    "import fluxmq._core.mqtt.decode as codec\n\ncodec.Decoder(5)\n",
    "from fluxmq._core.queue.page import *\n"])
def test_a_planted_reader_is_seen(text: str) -> None:
    tree = ast.parse(text)
    assert readers(tree) and foreign(tree)


@pytest.mark.parametrize("text", [
    "from fluxmq._core.disk.journal_format import FILE_HEADER_SIZE, encode_batch\n",
    "from fluxmq._core.amqp091 import methods as m\n\nm.BasicAck(delivery_tag=1).encode()\n",
    "from oracle.stored import crc32c\n\ncrc32c(b'')\n",
    "from oracle import amqp091\n\namqp091.decode_method(b'')\n"])
def test_writers_and_oracles_are_free(text: str) -> None:
    assert not readers(ast.parse(text))


@pytest.mark.parametrize("text", [
    "import fluxmq\n",
    "from fluxmq.model import mqtt\n",
    "from kit.journals import commit\n",
    "def f():\n    import unit.amqp_world\n"])
def test_an_oracle_that_borrows_is_seen(text: str) -> None:
    assert foreign(ast.parse(text))
    assert not foreign(ast.parse("import struct\nfrom oracle.mqtt import parse\nimport zstandard\n"))
