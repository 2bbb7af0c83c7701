"""`fluxmq replay …`, and what spark-submit runs (job.py): one command for each job. A job is imported when it runs."""
from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from fluxmq.model.extras import how_to_install
from fluxmq.spark.session import SparkMissing

__all__ = ["replay"]

# Packages of the extra `spark`.
EXTRA = ("pyspark", "py4j", "pyarrow", "numpy", "pandas")

# command: module of this package, the click command in it, what it does. The table, so that help imports nothing.
JOBS: dict[str, tuple[str, str, str]] = {
    "run": ("replay.command", "run", "Replay a recording against a broker."),
    "profile": ("profile.command", "profile", "Show what is in a recording."),
    "verify": ("verify.command", "verify", "Check that the broker delivered what it must, and nothing else."),
    "show": ("report.show", "show", "Show the outcome of a replay."),
    "compare": ("report.compare", "compare", "Show two results beside each other, as HTML and as text."),
    "gate": ("gate.command", "gate", "Judge results against others, by thresholds, telling noise from regressions."),
}


@click.command("job-path")
def job_path() -> None:
    """Print the path of the file that spark-submit runs."""
    click.echo(Path(__file__).with_name("job.py"))


class Jobs(click.Group):
    """Commands whose modules are imported on demand."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*JOBS, "job-path"]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name == "job-path":
            return job_path
        if name not in JOBS:
            return None
        module, attribute, _ = JOBS[name]
        command: Any = getattr(import_module(f"fluxmq.spark.{module}"), attribute)
        return command if isinstance(command, click.Command) else None

    def invoke(self, context: click.Context) -> Any:
        """Without the extra prints one sentence, whichever import fails."""
        try:
            return super().invoke(context)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in EXTRA:
                raise
            raise SparkMissing(f"`fluxmq replay` needs {missing}, which is not installed: "
                               f"{how_to_install('spark')}, and Java 17") from None

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in JOBS.items()]
                               + [("job-path", job_path.get_short_help_str())])


@click.group(cls=Jobs, context_settings={"help_option_names": ["-h", "--help"]})
def replay() -> None:
    """Profile recordings, replay them against a broker, and judge the results.

    Needs `pip install '.[spark]'` in the checkout, and Java 17. Without --master a job runs in this process, on all
    processors.
    """
