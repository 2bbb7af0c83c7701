"""Time on CPU and memory of another process."""
from __future__ import annotations

import subprocess
import sys

from kit.tools import missing_tool

try:
    from fluxmq.spark.replay.broker_process import process_seconds, resident_bytes, sampled
except ImportError:
    missing_tool("PySpark is not installed (pip install '.[spark]')")

# Two threads, one after the other, work for 0.2 s each of their own time, and end.
PROGRAM = """
import sys, threading, time
def work():
    while time.thread_time() < 0.2:
        pass
for _ in range(2):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print(time.process_time(), flush=True)
sys.stdin.read()
"""


def test_threads_that_ended_are_counted() -> None:
    with subprocess.Popen([sys.executable, "-P", "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        own = 0.0
        with sampled(process.pid) as samples:
            for _ in range(2):
                own = float(process.stdout.readline())
        found = process_seconds(process.pid)
        assert found is not None and 0.4 <= own <= found
        process.stdin.close()
    seconds = [used for _, used in samples.cpu]
    assert seconds == sorted(seconds) and seconds[-1] >= own
    assert process_seconds(process.pid) is None


# Holds 64 MiB while it is told to, each page written.
HOLDER = """
import sys
sys.stdin.readline()
held = bytearray(b"x") * (64 << 20)
print(flush=True)
sys.stdin.readline()
del held
print(flush=True)
sys.stdin.read()
"""


def test_the_memory_that_a_process_had_for_a_while_is_its_peak() -> None:
    with subprocess.Popen([sys.executable, "-P", "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        before = resident_bytes(process.pid)
        with sampled(process.pid) as samples:
            for _ in range(2):
                process.stdin.write("\n")
                process.stdin.flush()
                process.stdout.readline()
                assert samples.take(process.pid)
        process.stdin.close()
    sizes = [size for _, size in samples.memory]
    assert before is not None and max(sizes) >= before + (64 << 20) > sizes[-1] + (32 << 20)
    assert [now for now, _ in samples.memory] == [now for now, _ in samples.cpu]
    assert resident_bytes(process.pid) is None and not samples.take(process.pid)


def test_without_a_process_there_are_no_samples() -> None:
    with sampled(None) as samples:
        pass
    assert not samples.cpu and not samples.memory
