"""Ring 3: the other nodes of a cluster, behind the ports of the engine (docs/internals/cluster.md)."""
import os

# gRPC prints to stderr what the errors that it raises say too. It reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
