"""Ports that the benchmarks give to what they start: none twice before all were given, none that somebody has."""
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import fluxmq.bench.load.brokers as brokers
from fluxmq.bench.load.brokers import PORT_MIN, free_port

LOW = 2 * PORT_MIN


@pytest.fixture(autouse=True)
def ten_thousand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As many ports, whatever the range of this machine is."""
    file = tmp_path / "ip_local_port_range"
    file.write_text(f"{LOW}\t60999\n")
    monkeypatch.setattr(brokers, "EPHEMERAL", file)
    brokers.ports.cache_clear()
    yield
    brokers.ports.cache_clear()


def test_none_twice() -> None:
    # Were each drawn from all of them, some fifty would be there twice.
    given = [free_port() for _ in range(1000)]
    assert len(set(given)) == len(given)
    assert all(PORT_MIN <= port < LOW for port in given)


def test_again_when_all_were_given() -> None:
    given = [free_port() for _ in range(2 * (LOW - PORT_MIN))]
    assert len(set(given)) <= LOW - PORT_MIN


def test_not_one_that_somebody_has() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        port = taken.getsockname()[1]
        assert port not in {free_port() for _ in range(LOW - PORT_MIN)}


@pytest.mark.parametrize("low", ["1024\t60999\n", None])
def test_where_the_kernel_leaves_none(tmp_path: Path, low: str | None) -> None:
    file = tmp_path / "ip_local_port_range"
    file.unlink() if low is None else file.write_text(low)
    port = free_port()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port))
