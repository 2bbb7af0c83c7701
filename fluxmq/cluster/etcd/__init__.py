"""etcd: the metadata store of a cluster. What speaks to it, and its member process as a child of the node."""
