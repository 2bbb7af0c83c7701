"""Power is lost while a recording is written: every part that the manifest names is there, whole."""
from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from kit.powercut import PowerCut
from kit.python import TESTS, environment

from fluxmq.record.reading import open_recording

ROWS_PER_PART = 50
PROGRAM = f"""
import sys
from pathlib import Path
from fluxmq.record.files import RecordingFiles, batch_of_rows, prepare_directory
from fluxmq.record.manifest import new_manifest
from fluxmq.record.options import BrokerAbout, RecordOptions

path, options = Path(sys.argv[1]), RecordOptions(max_rows={ROWS_PER_PART})
prepare_directory(path)
files = RecordingFiles(path, new_manifest(options, BrokerAbout()), options)
for first in range(0, 100 * {ROWS_PER_PART}, 10):
    files.write(batch_of_rows([{{"seq": seq, "time": 1 + seq, "connection": 1, "kind": "opened", "protocol": "mqtt"}}
                               for seq in range(first, first + 10)]))
    print(files.parts, flush=True)
"""


def test_parts_that_are_named_are_whole(tmp_path: Path) -> None:
    cut = PowerCut(tmp_path / "cut")
    process = subprocess.Popen([sys.executable, "-P", "-c", PROGRAM, str(cut.live / "monday")], text=True,
                               stdout=subprocess.PIPE, env=environment(TESTS, **cut.env))
    assert process.stdout is not None
    said = 0
    while said < 3:
        line = process.stdout.readline()
        assert line, "it ended by itself"
        said = int(line)
    process.kill()
    process.wait()
    process.stdout.close()
    for attempt, chance in enumerate([None, *map(random.Random, range(10))]):
        left = open_recording(cut.restore(tmp_path / str(attempt), torn=chance) / "monday")
        assert not left.manifest.end and left.manifest.rows >= said * ROWS_PER_PART
        whole = left.table(["seq"]).column("seq").to_pylist()
        assert whole[:left.manifest.rows] == list(range(left.manifest.rows))
