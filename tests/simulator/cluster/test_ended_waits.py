"""Who waits is cancelled, as tasks are when a node stops: what was to end the wait does its work for everybody else."""
from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from simulator.cluster.test_takeover import connected, serving
from simulator.driver import SimDriver

from fluxmq.cluster.recorded import recorded
from fluxmq.engine.ports.driver import fulfil


def started(driver: SimDriver, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Its work, once it waits."""
    work = driver.start(coroutine)
    driver.run_ready()
    assert not work.done()
    return work


def test_a_record_reaches_the_disk_after_its_wait_was_cancelled() -> None:
    """The call that ends the wait comes in a turn of the poller, which has other things to release."""
    brokers = serving()
    broker = brokers.processes["one"]
    node, driver = broker.node, broker.process.driver
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    broker.hang()
    client.subscribe("a", 1)
    brokers.run_until(lambda: not node.journal_idle)
    told: list[str] = []
    work = started(driver, recorded(driver, node.broker.hub))
    node.broker.hub.when_gathered(lambda: told.append("the next one"), node.broker.hub.commits.local)
    work.cancel()
    driver.run_ready()
    assert work.done() and not told
    broker.go_on()
    while node.write_journal():
        node.turn()             # raises what a call raises
    assert told == ["the next one"]


@pytest.mark.parametrize("wait", ["end_of", "result_of"])
def test_one_of_several_that_wait_is_cancelled(wait: str) -> None:
    driver = SimDriver(lambda: 0)
    promise = driver.promise()
    heard = []

    async def waits() -> None:
        await getattr(driver, wait)(promise)
        heard.append(promise.result())

    first, second = started(driver, waits()), started(driver, waits())
    first.cancel()
    driver.run_ready()
    assert first.done() and not promise.done() and not second.done()
    fulfil(promise, "done")
    driver.run_ready()
    driver.run_ready()
    assert second.done() and heard == ["done"]


def test_a_promise_that_is_awaited_directly_ends_with_who_awaits_it() -> None:
    """As with asyncio."""
    driver = SimDriver(lambda: 0)
    promise = driver.promise()

    async def waits() -> None:
        await promise

    started(driver, waits()).cancel()
    driver.run_ready()
    assert promise.done()
    fulfil(promise, None)
    with pytest.raises(AssertionError):
        promise.set_result(None)
