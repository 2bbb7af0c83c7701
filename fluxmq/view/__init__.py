"""The live view of `fluxmq viz`: what brokers do, as moving dots on a terminal. See docs/guide/viz.md."""
