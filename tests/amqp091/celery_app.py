"""The Celery application that test_13_celery.py starts a worker of. CELERY_BROKER says where the broker is."""
import os

from celery import Celery

app = Celery("fluxmq_tests", broker=os.environ["CELERY_BROKER"], backend="rpc://")
app.conf.update(
    task_default_queue=os.environ["CELERY_QUEUE"], task_acks_late=True, worker_prefetch_multiplier=10,
    broker_connection_retry_on_startup=True, task_track_started=False, result_expires=60,
    worker_hijack_root_logger=False)


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task(bind=True, max_retries=3)
def fails_twice(self) -> int:
    """Retried with a countdown of nothing: a message back into the queue."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return self.request.retries


@app.task
def fails() -> None:
    raise ValueError("as it should")
