"""Who may connect, and what they may do: users, passwords, SCRAM, the access list, TLS contexts.

The broker uses `authority.Authority`; it implements the port `fluxmq.engine.ports.access.Authority`.
"""
__all__: list[str] = []
