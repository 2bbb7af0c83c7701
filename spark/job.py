"""The program for spark-submit: `spark-submit [SPARK OPTIONS] …/fluxmq/spark/job.py profile RECORDING …`.

The arguments are those of `fluxmq replay`; `fluxmq replay job-path` prints the path of this file.
"""
import sys

from fluxmq.app.cli import main

if __name__ == "__main__":
    main(["replay", *sys.argv[1:]])
