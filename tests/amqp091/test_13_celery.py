"""Celery: a worker and a thousand tasks, with results over AMQP (rpc://). Nothing about the broker is configured but
its URL."""
from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from kit.python import TESTS, environment
from kit.watch import wait_until

SECONDS = 60.0          # only a failing test waits for it
TASKS = 1000


@pytest.fixture(scope="module")
def celery(session_amqp_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The application's module, with a worker of two processes running."""
    host, port = session_amqp_broker.amqp
    given = {"CELERY_BROKER": f"amqp://guest:guest@{host}:{port}//", "CELERY_QUEUE": f"celery-{os.getpid()}"}
    os.environ.update(given)
    path = tmp_path_factory.mktemp("celery") / "worker.log"
    with path.open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "celery", "-A", "amqp091.celery_app", "worker", "--concurrency=2",
             "--pool=prefork", "--loglevel=INFO"],
            env=environment(TESTS, **given), cwd=path.parent, stdout=log, stderr=subprocess.STDOUT)
    application = importlib.import_module("amqp091.celery_app")
    try:
        wait_until(lambda: b" ready." in path.read_bytes() or worker.poll() is not None, SECONDS)
        assert worker.poll() is None, path.read_text()
        yield application
        worker.terminate()
        assert worker.wait(SECONDS) == 0, path.read_text()
    finally:
        worker.kill()
        worker.wait()
        with application.app.connection() as connection:
            connection.default_channel.queue_delete(given["CELERY_QUEUE"])
        application.app.close()


def test_a_thousand_tasks(celery: Any) -> None:
    """Every task is done once and every result comes back."""
    results = [celery.add.delay(number, number) for number in range(TASKS)]
    assert [result.get(timeout=SECONDS) for result in results] == [2 * number for number in range(TASKS)]


def test_a_group(celery: Any) -> None:
    """Results of a group are collected."""
    from celery import group

    assert group(celery.add.s(number, 1) for number in range(50))().get(timeout=SECONDS) == list(range(1, 51))


def test_retries_and_failures(celery: Any) -> None:
    """A task that asks for a retry is run again; one that fails says why."""
    assert celery.fails_twice.delay().get(timeout=SECONDS) == 2
    with pytest.raises(ValueError, match="as it should"):
        celery.fails.delay().get(timeout=SECONDS)


def test_the_worker_answers_to_control(celery: Any) -> None:
    """`celery inspect ping`: broadcast by a fanout exchange, answers by a queue of one's own."""
    answers = celery.app.control.ping(timeout=SECONDS, limit=1)     # and no longer than for one
    assert [list(answer.values()) for answer in answers] == [[{"ok": "pong"}]]
