"""Numbers of a result: throughput, latencies, losses, with pyarrow or with Spark."""
