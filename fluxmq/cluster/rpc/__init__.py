"""Connections between nodes over gRPC: `transport.GrpcTransport` is `cluster.ports.Transport`. Needs the extra
`cluster`; nothing else in fluxmq imports grpc, except cluster/etcd."""
