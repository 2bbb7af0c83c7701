"""`fluxmq replay run`: from a recording to operations of each partition, and the replay as a whole."""
