"""`fluxmq tryout --failover-verify`: it kills, loses nothing, and finds a broker that confirms too early."""
from __future__ import annotations

from pathlib import Path

import pytest
from kit.earlyconfirm import early_confirm
from kit.tryout import Tryout

from fluxmq.app.tryout_cli import as_page, as_verdict


@pytest.mark.timeout(300)
def test_nothing_confirmed_is_lost(base: Path) -> None:
    """Of nodes that came one after the other."""
    with Tryout(base, "--staggered", "--failover-verify", "--rounds", "2") as tryout:
        assert [node["state"] for node in tryout.up["nodes"]] == ["up"] * 3
        page = as_page(tryout.up)
        assert "They came one after the other, under traffic.\nMessages that were published meanwhile: " in page
        assert "Now nodes are killed under load" in page and "127.0.0.1" not in page
        assert any(client["confirmed"] for client in tryout.up["clients"])
        found = tryout.event("failover-verify")
        assert tryout.end(None) == 0
    assert found["ok"] and found["lost"] == 0 and found["lost_identities"] == [] and found["problems"] == []
    assert [one["why"] for one in found["rounds"]] == ["owner of partition 0", "node of etcd's leader"]
    assert found["published"] >= found["confirmed"] >= 600
    assert found["received"] >= found["confirmed"] and found["confirmed_mqtt"] and found["confirmed_amqp"]
    assert found["published"] == found["confirmed"] + found["refused"] + found["unanswered"]
    assert "has partition 1 of orders now" in tryout.progress
    assert as_verdict(found).endswith("no confirmed message is lost")


@pytest.mark.timeout(300)
def test_an_early_confirm_is_found(base: Path, tmp_path: Path) -> None:
    """The consumers stand still when the owner is killed, so what it has confirmed too early is lost for certain."""
    with Tryout(base, "--failover-verify", "--rounds", "1", environ=early_confirm(tmp_path, "mqtt-node-")) as tryout:
        assert tryout.up
        found = tryout.event("failover-verify")
        assert tryout.end(None) == 1
    assert not found["ok"] and found["lost"] > 0
    assert {identity.split("-")[0] for identity in found["lost_identities"]} <= {"mqtt", "amqp"}
    assert found["lost_identities"]
    assert f"{found['lost']} confirmed messages are lost, such as {found['lost_identities'][0]}" in as_verdict(
        found | {"problems": []})
