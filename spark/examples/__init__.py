"""Examples of the data source `fluxmq`: each is a program (`python -m fluxmq.spark.examples.NAME --help`)."""
