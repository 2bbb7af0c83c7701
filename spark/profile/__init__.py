"""`fluxmq replay profile`: what a recording holds."""
