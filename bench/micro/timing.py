"""What the benchmarks under pytest note beside pytest-benchmark's own figures."""
from typing import Any

__all__ = ["note_nanoseconds"]


def note_nanoseconds(benchmark: Any, name: str, calls: int) -> None:
    """Sets extra_info[name] to the nanoseconds per call in the fastest round. calls: of a round. Does nothing under
    --benchmark-disable, which takes no times."""
    if benchmark.stats is not None:
        benchmark.extra_info[name] = round(benchmark.stats.stats.min / calls * 1e9, 1)
