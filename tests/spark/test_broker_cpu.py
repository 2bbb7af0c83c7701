"""The processor time of another process."""
from __future__ import annotations

import subprocess
import sys

from kit.tools import missing_tool

try:
    from fluxmq.spark.broker_cpu import process_seconds, sampled
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
    seconds = [used for _, used in samples]
    assert seconds == sorted(seconds) and seconds[-1] >= own
    assert process_seconds(process.pid) is None
