"""The section `cluster`: the example of the seed is taken, what cannot work is refused with its key and what to write,
and the addresses that follow."""
import importlib.util
import re
from pathlib import Path

import pytest
import yaml
from kit.certs import issue, make_ca

from fluxmq._core.errors import ConfigError
from fluxmq.app import cluster_checks
from fluxmq.app.broker_notes import Note
from fluxmq.app.certificates import cluster_faults
from fluxmq.app.cluster_checks import cluster_warnings
from fluxmq.app.config import InvalidConfig, load
from fluxmq.app.server import run
from fluxmq.model.address import Address, parse_address
from fluxmq.model.cluster_addresses import addresses, names_others
from fluxmq.model.config import Config
from fluxmq.model.config_keys import KEYS

# As it stands in the documentation of the configuration that this one follows.
EXAMPLE = """\
cluster:
  enabled: true
  node_id: "broker-1"

  etcd:
    data_dir: "/nowhere/etcd"
    bind_addr: "0.0.0.0:2380"
    client_addr: "0.0.0.0:2379"
    initial_cluster: "broker-1=http://0.0.0.0:2380"
    bootstrap: true
    hybrid_retained_size_threshold: 1024

  transport:
    bind_addr: "0.0.0.0:7948"
    peers: {}

  raft:
    enabled: false
    write_policy: "forward"
    distribution_mode: "forward"
"""
ON = ("cluster.enabled=true", "cluster.node_id=one")
THREE = "one=http://10.0.0.1:2380,two=http://10.0.0.2:2380,three=http://10.0.0.3:2380"
# The first of three machines.
FIRST = (*ON, "server.mqtt.tcp.plain.addr=10.0.0.1:1883", "auth.allow_anonymous=true",
         "cluster.etcd.bind_addr=0.0.0.0:2380", "cluster.etcd.client_addr=0.0.0.0:2379",
         f"cluster.etcd.initial_cluster={THREE}", "cluster.transport.bind_addr=10.0.0.1:7948")


def problems(*sets: str, file: Path | None = None) -> dict[str, str]:
    with pytest.raises(InvalidConfig) as caught:
        load(file, None, sets)
    found: dict[str, str] = {}
    for problem in caught.value.problems:
        assert isinstance(problem, ConfigError)
        found[problem.path] = f"{found.get(problem.path, '')}{problem.text}\n"
    return found


def config_of(*sets: str) -> Config:
    return load(None, None, sets)[0]


def test_the_example_of_the_seed_is_taken_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "fluxmq.yaml"
    file.write_text(EXAMPLE)
    config, _ = load(file)
    assert not names_others(config)
    found = addresses(config)
    assert found.member is not None
    assert found.member._asdict() == {
        "name": "broker-1", "data_dir": "/nowhere/etcd", "peer_listen": "http://0.0.0.0:2380",
        "peer_url": "http://127.0.0.1:2380", "client_listen": "http://0.0.0.0:2379",
        "client_url": "http://127.0.0.1:2379", "initial_cluster": (("broker-1", "http://127.0.0.1:2380"),)}
    assert found[1:] == (("127.0.0.1:2379",), Address("0.0.0.0", 7948), "127.0.0.1:7948", {})


def test_a_name_is_all_that_a_cluster_of_one_needs(tmp_path: Path) -> None:
    config = config_of(*ON, f"storage.dir={tmp_path}")
    member = addresses(config).member
    assert member is not None and member.data_dir == str(tmp_path / "etcd")
    assert member.initial_cluster_text == "one=http://127.0.0.1:2380"
    assert cluster_warnings(config) == []


def test_what_the_first_of_three_listens_on_and_what_the_others_dial() -> None:
    found = addresses(config_of(*FIRST, "cluster.transport.peers={two: '10.0.0.2:7948'}"))
    assert found.member is not None
    assert (found.member.peer_listen, found.member.peer_url) == ("http://0.0.0.0:2380", "http://10.0.0.1:2380")
    assert (found.member.client_listen, found.member.client_url) == ("http://0.0.0.0:2379", "http://10.0.0.1:2379")
    assert found.member.initial_cluster_text == THREE
    assert found.endpoints == ("127.0.0.1:2379",)
    assert found.transport_listen == Address("10.0.0.1", 7948) and found.transport_address == "10.0.0.1:7948"
    assert found.peers == {"two": "10.0.0.2:7948"}


def test_the_own_entry_of_peers_is_what_others_dial() -> None:
    found = addresses(config_of(*FIRST, "cluster.transport.bind_addr=:7948",
                                "cluster.transport.peers={one: 'one.example:17948', two: '[fd00::2]:7948'}"))
    assert found.transport_listen == Address("", 7948) and found.transport_address == "one.example:17948"
    assert found.peers == {"two": "[fd00::2]:7948"}


def test_every_interface_is_an_address_that_etcd_takes() -> None:
    member = addresses(config_of(*ON, "cluster.etcd.bind_addr=:2380", "cluster.etcd.client_addr=[::]:2379")).member
    assert member is not None and member.peer_listen == "http://0.0.0.0:2380"
    assert (member.client_listen, member.client_url) == ("http://[::]:2379", "http://127.0.0.1:2379")


def test_an_etcd_elsewhere_starts_no_member() -> None:
    config = config_of(*ON, "cluster.etcd.endpoints=['http://e1:2379', 'e2:2379', 'e2:2379']",
                       "cluster.transport.bind_addr=10.0.0.4:7948")
    found = addresses(config)
    assert found.member is None and found.endpoints == ("e1:2379", "e2:2379")
    assert any("e1:2379" in line and "without TLS" in line for line in cluster_warnings(config))
    assert not any("bind_addr" in line and "etcd" in line for line in cluster_warnings(config)[1:])


@pytest.fixture()
def tls(tmp_path: Path) -> dict[str, str]:
    ca = make_ca(tmp_path)
    cert, key = issue(ca, "one", dns=["one.example"])
    return {"cert_file": cert, "key_file": key, "ca_file": str(ca.cert_file)}


def secured(section: str, tls: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"cluster.{section}.tls.{name}={file}" for name, file in tls.items())


def test_with_tls_the_urls_are_https_and_nothing_is_warned_of(tls: dict[str, str]) -> None:
    three = THREE.replace("http:", "https:")
    config = config_of(*FIRST, f"cluster.etcd.initial_cluster={three}", *secured("etcd", tls),
                       *secured("transport", tls))
    found = addresses(config)
    assert found.member is not None and found.member.initial_cluster_text == three
    assert found.member.client_listen == "https://0.0.0.0:2379"
    assert found.endpoints == ("10.0.0.1:2379",)    # a certificate is made for it, and not for 127.0.0.1
    assert cluster_warnings(config) == []


def test_without_tls_the_start_says_what_anyone_there_can_do() -> None:
    lines = cluster_warnings(config_of(*FIRST))
    assert [line.partition(":")[0] for line in lines] == [
        "cluster.etcd.bind_addr", "cluster.etcd.client_addr", "cluster.transport.bind_addr"]
    assert all("without TLS" in line and "takes any session" in line for line in lines)
    assert cluster_warnings(Config()) == []


def test_what_other_machines_cannot_reach_is_warned_of() -> None:
    def told(*sets: str) -> list[str]:
        return [line for line in cluster_warnings(config_of(*FIRST, *sets)) if "without TLS" not in line]

    assert told() == []
    [line] = told("cluster.etcd.client_addr=127.0.0.1:2379")
    assert line.startswith("cluster.etcd.client_addr: 127.0.0.1:2379 is this machine only")
    [line] = told("server.mqtt.tcp.plain.addr=127.0.0.1:1883")
    assert line.startswith("server.mqtt.tcp.plain, server.mqtt.websocket.plain: no MQTT client of another machine")
    # A listener that others reach is enough, and so is none.
    assert told("server.mqtt.tcp.plain.addr=127.0.0.1:1883", "server.mqtt.websocket.plain.addr=:8083") == []
    assert told("server.mqtt.tcp.plain.addr=", "server.mqtt.websocket.plain.addr=") == []
    # All nodes are on this machine, or there is no other one.
    three = "one=http://127.0.0.1:2380,two=http://127.0.0.1:2381,three=http://127.0.0.1:2382"
    assert cluster_warnings(config_of(*ON, f"cluster.etcd.initial_cluster={three}")) == []
    assert cluster_warnings(config_of(*ON)) == []


def test_an_even_number_of_members_is_warned_of() -> None:
    two = "one=http://127.0.0.1:2380,two=http://127.0.0.1:3380"
    [line] = cluster_warnings(config_of(*ON, f"cluster.etcd.initial_cluster={two}"))
    assert "odd number" in line and "2 members" in line


@pytest.mark.parametrize(("sets", "path", "part"), [
    (["cluster.nod_id=x"], "cluster.nod_id", "the nearest is cluster.node_id"),
    (["cluster.lease_ttl=2s"], "cluster.lease_ttl", "from 3s to 2m"),
    (["cluster.lease_ttl=3500ms"], "cluster.lease_ttl", "whole seconds"),
    (["cluster.etcd.bootstrap=1"], "cluster.etcd.bootstrap", "true or false"),
    (["cluster.etcd.quota_bytes=1MiB"], "cluster.etcd.quota_bytes", "from 16MiB to 8GiB"),
    (["cluster.raft.distribution_mode=replicate"], "cluster.raft.distribution_mode", "not in this version"),
    (["cluster.node_id="], "cluster.node_id", "such as broker-1"),
    (["cluster.node_id=a/b"], "cluster.node_id", "letters, digits"),
    (["cluster.node_id=" + "n" * 65], "cluster.node_id", "at most 64"),
    (["storage.type=memory"], "storage.type", "rocksdb"),
    (["cluster.etcd.bind_addr=127.0.0.1:0"], "cluster.etcd.bind_addr", "port 0"),
    (["cluster.transport.bind_addr=127.0.0.1:0"], "cluster.transport.bind_addr", "port 0"),
    (["cluster.etcd.client_addr=one.example:2379"], "cluster.etcd.client_addr", "0.0.0.0:2379"),
    (["cluster.etcd.bind_addr=:2379"], "cluster.etcd.client_addr", "clashes with cluster.etcd.bind_addr"),
    (["cluster.transport.bind_addr=:1883"], "cluster.transport.bind_addr", "clashes with server.mqtt.tcp.plain.addr"),
    (["cluster.etcd.client_addr=127.0.0.1:8081"], "cluster.etcd.client_addr", "clashes with server.health_addr"),
    (["cluster.etcd.initial_cluster=one"], "cluster.etcd.initial_cluster", "name=url"),
    (["cluster.etcd.initial_cluster=one=10.0.0.1:2380"], "cluster.etcd.initial_cluster", "write http://10.0.0.1:2380"),
    (["cluster.etcd.initial_cluster=one=ftp://10.0.0.1:2380"], "cluster.etcd.initial_cluster", "http://host:port"),
    (["cluster.etcd.initial_cluster=one=http://10.0.0.1"], "cluster.etcd.initial_cluster", "no port"),
    (["cluster.etcd.initial_cluster=one=http://127.0.0.1:0"], "cluster.etcd.initial_cluster", "a port is needed"),
    (["cluster.etcd.initial_cluster=o/e=http://10.0.0.1:1"], "cluster.etcd.initial_cluster", "a name has"),
    (["cluster.etcd.initial_cluster=two=http://127.0.0.1:2380"], "cluster.etcd.initial_cluster", "add one=URL"),
    (["cluster.etcd.initial_cluster=one=http://127.0.0.1:2380,one=http://127.0.0.1:3380"],
     "cluster.etcd.initial_cluster", "named twice"),
    (["cluster.etcd.initial_cluster=one=http://127.0.0.1:2380,two=http://127.0.0.1:2380"],
     "cluster.etcd.initial_cluster", "the same address"),
    (["cluster.etcd.initial_cluster=one=https://127.0.0.1:2380"], "cluster.etcd.initial_cluster", "https needs"),
    (["cluster.etcd.bootstrap=false"], "cluster.etcd.initial_cluster", "bootstrap is false"),
    (["cluster.etcd.endpoints=['http://']"], "cluster.etcd.endpoints", "http://host:port"),
    (["cluster.etcd.endpoints=['0.0.0.0:2379']"], "cluster.etcd.endpoints", "cannot be dialled"),
    (["cluster.etcd.endpoints=['https://e:2379']"], "cluster.etcd.endpoints", "https needs"),
    (["cluster.etcd.endpoints=['e:1']", "cluster.etcd.initial_cluster=one=http://127.0.0.1:2380"],
     "cluster.etcd.initial_cluster", "does nothing with cluster.etcd.endpoints"),
    (["cluster.etcd.endpoints=['e:1']", "cluster.etcd.bootstrap=false"], "cluster.etcd.bootstrap", "does nothing"),
    (["cluster.transport.peers={two: host}"], "cluster.transport.peers", "no port"),
    (["cluster.transport.peers={'t o': 'h:1'}"], "cluster.transport.peers", "no name of a node"),
    (["cluster.transport.peers={two: '127.0.0.1:0'}"], "cluster.transport.peers", "a port is needed"),
    (["cluster.transport.peers={two: 'h:1', three: 'H:1'}"], "cluster.transport.peers", "the same address"),
    (["cluster.transport.peers={two: '127.0.0.1:7948'}"], "cluster.transport.peers", "the address of this node"),
    (["cluster.transport.peers={one: '127.0.0.1:7949'}"], "cluster.transport.peers", "another address"),
    (["cluster.transport.peers={one: '10.0.0.1:7948'}"], "cluster.transport.peers", "0.0.0.0:7948"),
    (["cluster.transport.bind_addr=10.0.0.2:7948", "cluster.transport.peers={one: '10.0.0.1:7948'}"],
     "cluster.transport.peers", "another address"),
    # 0.0.0.0 and 127.0.0.1 are nothing that another machine can dial.
    (["cluster.transport.bind_addr=:7948", "cluster.transport.peers={two: '10.0.0.2:7948'}"],
     "cluster.transport.bind_addr", '{one: "10.0.0.1:7948"}'),
    (["cluster.transport.bind_addr=:7948", "cluster.transport.peers={one: '0.0.0.0:7948', two: '10.0.0.2:7948'}"],
     "cluster.transport.peers", "one: 10.0.0.1:7948"),
    (["cluster.transport.bind_addr=:7948", "cluster.etcd.endpoints=['e:1']"], "cluster.transport.bind_addr", "add to"),
    (["cluster.etcd.initial_cluster=one=http://0.0.0.0:2380,two=http://10.0.0.2:2380"],
     "cluster.etcd.initial_cluster", "one=http://10.0.0.1:2380"),
    (["cluster.etcd.initial_cluster=one=http://127.0.0.1:2380,two=http://10.0.0.2:2380"],
     "cluster.etcd.initial_cluster", "this machine only"),
    ([f"cluster.etcd.initial_cluster={THREE}"], "cluster.transport.bind_addr", "this machine only"),
    ([f"cluster.etcd.initial_cluster={THREE}"], "cluster.etcd.bind_addr", "0.0.0.0:2380"),
    (["cluster.transport.peers={two: '10.0.0.2:7948'}"], "cluster.transport.bind_addr", "this machine only"),
    (["cluster.transport.tls.cert_file=/nowhere"], "cluster.transport.tls.cert_file", "No such file"),
    (["cluster.transport.tls.cert_file=/nowhere"], "cluster.transport.tls.ca_file", "must be set too"),
    (["cluster.etcd.tls.ca_file=/dev/null"], "cluster.etcd.tls.key_file", "must be set too"),
    (["cluster.etcd.data_dir=/dev/null"], "cluster.etcd.data_dir", "not a directory"),
    (["cluster.etcd.data_dir=fluxmq-data"], "cluster.etcd.data_dir", "one of its own"),
    (["cluster.etcd.binary=/nowhere/etcd"], "cluster.etcd.binary", "no program"),
])
def test_what_cannot_work_is_refused_with_the_key_and_what_to_write(sets: list[str], path: str, part: str) -> None:
    found = problems(*ON, *sets)
    assert part in found.get(path, ""), found


def test_https_is_required_with_tls(tls: dict[str, str]) -> None:
    found = problems(*ON, *secured("etcd", tls), "cluster.etcd.initial_cluster=one=http://127.0.0.1:2380")
    assert "write https://" in found["cluster.etcd.initial_cluster"]


def test_an_etcd_elsewhere_may_ask_for_no_certificate(tls: dict[str, str]) -> None:
    elsewhere = (*ON, "cluster.etcd.endpoints=['https://e:2379']", f"cluster.etcd.tls.ca_file={tls['ca_file']}")
    assert config_of(*elsewhere).cluster.etcd.tls.enabled
    assert set(problems(*elsewhere, f"cluster.etcd.tls.cert_file={tls['cert_file']}")) == {"cluster.etcd.tls.key_file"}


def test_without_the_extra_one_sentence_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(cluster_checks.importlib.util, "find_spec",
                        lambda name: None if name in ("grpc", "etcd3") else there(name))
    text = problems(*ON)["cluster.enabled"]
    assert "grpc and etcd3 cannot be found" in text and "pip install '.[cluster]'" in text


@pytest.mark.parametrize("sets", [
    (), ("cluster.etcd.bind_addr=127.0.0.1:1883",), ("cluster.transport.peers={one: nonsense}",),
    ("cluster.etcd.initial_cluster=nonsense",), ("cluster.transport.tls.cert_file=/nowhere",),
    ("storage.type=memory",)])
def test_nothing_is_checked_without_a_cluster(sets: tuple[str, ...]) -> None:
    assert not config_of(*sets).cluster.enabled


GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "cluster.md").read_text()
EXAMPLES = dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", GUIDE, re.DOTALL))
TO_ADD = GUIDE.partition("```yaml\n# Add to the file of each node")[2].partition("\n")[2].partition("```")[0]


def test_the_files_of_the_guide_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("users").write_text("")
    found = {}
    for name, text in EXAMPLES.items():
        Path(name).write_text(text)
        config = load(Path(name))[0]
        found[name] = addresses(config)
        # Clients of a node that leaves are sent to the others: where other machines are, they must reach this one.
        clients = parse_address(config.server.mqtt.tcp.plain.addr)
        assert clients.is_loopback == parse_address(found[name].transport_address).is_loopback
    assert len(found) == 6
    three = [found[f"broker-{n}.yaml"] for n in (1, 2, 3)]
    assert len({one.member.initial_cluster for one in three if one.member}) == 1
    assert {one.transport_address for one in three} == {f"127.0.0.1:{port}" for port in (7948, 7949, 7950)}
    bound = [port for name in ("broker-1.yaml", "broker-2.yaml", "broker-3.yaml")
             for port in re.findall(r"(?:addr: \"127[^:]*):(\d+)", EXAMPLES[name])]
    assert len(bound) == len(set(bound)) == 15      # they run side by side
    assert found["broker-6.yaml"].member is None


def test_the_certificates_of_the_guide_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cert, key = issue(make_ca(tmp_path, "nodes-ca"), "broker-1", ip=["10.0.0.1", "127.0.0.1"])
    for file, name in ((cert, "node.crt"), (key, "node.key"), ("nodes-ca.pem", "nodes-ca.crt")):
        Path(file).rename(name)
    Path("users").write_text("")
    both = yaml.safe_load(EXAMPLES["one-of-three.yaml"])
    for section, keys in yaml.safe_load(TO_ADD)["cluster"].items():
        both["cluster"][section] |= keys
    Path("both.yaml").write_text(yaml.safe_dump(both))
    config, _ = load(Path("both.yaml"))
    assert cluster_warnings(config) == [] and list(cluster_faults(config)) == []


@pytest.mark.parametrize(("of_file", "of_cluster", "word"), [
    ("acl_file", "cluster_permissions", "acl"),
    ("users_file", "cluster_users", "users"),
])
def test_files_of_each_node_and_what_the_cluster_has(tmp_path: Path, of_file: str, of_cluster: str, word: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    [line] = [line for line in cluster_warnings(config_of(*FIRST, f"auth.{of_file}={file}")) if of_file in line]
    assert "every node needs the same file" in line
    assert not any(word in line for line in cluster_warnings(config_of(*FIRST, f"auth.{of_cluster}=true")))
    with pytest.raises(ConfigError, match="set one of the two"):
        config_of(*FIRST, f"auth.{of_cluster}=true", f"auth.{of_file}={file}")
    with pytest.raises(ConfigError, match="there is no cluster"):
        config_of(f"auth.{of_cluster}=true")


def test_the_guide_names_every_key() -> None:
    assert set(re.findall(r"`(cluster\.[a-z_.]+)`(?=[^\n]*\|)", GUIDE.partition("## Every key")[2])) == {
        path for path in KEYS if path.startswith("cluster.")}


def test_all_keys_are_in_the_schema() -> None:
    assert [path.removeprefix("cluster.") for path in KEYS if path.startswith("cluster.")] == [
        "enabled", "node_id", "lease_ttl", "route_publish_timeout", "disk_timeout", "leave_timeout", "old_storage",
        "etcd.data_dir", "etcd.bind_addr", "etcd.client_addr", "etcd.initial_cluster", "etcd.bootstrap",
        "etcd.hybrid_retained_size_threshold",
        "etcd.endpoints", "etcd.binary", "etcd.allow_unsafe_version", "etcd.quota_bytes", "etcd.tls.cert_file",
        "etcd.tls.key_file", "etcd.tls.ca_file", "transport.bind_addr", "transport.peers", "transport.window_bytes",
        "transport.tls.cert_file", "transport.tls.key_file", "transport.tls.ca_file", "raft.enabled",
        "raft.auto_provision_groups", "raft.replication_factor", "raft.sync_mode", "raft.min_in_sync_replicas",
        "raft.ack_timeout", "raft.write_policy", "raft.distribution_mode", "raft.heartbeat_timeout",
        "raft.election_timeout", "raft.peers", "raft.groups", "raft.queues", "raft.bind_addr", "raft.data_dir",
        "raft.snapshot_interval", "raft.snapshot_threshold"]


def certified(tmp_path: Path, **changed: str) -> tuple[str, ...]:
    """A node at 127.0.0.1 with TLS everywhere."""
    ca = make_ca(tmp_path)
    cert, key = issue(ca, "one", ip=["127.0.0.1"])
    files = {"cert_file": cert, "key_file": key, "ca_file": str(ca.cert_file)} | changed
    return (*ON, *secured("etcd", files), *secured("transport", files),
            "cluster.etcd.initial_cluster=one=https://127.0.0.1:2380")


def test_a_certificate_that_the_other_nodes_accept_is_no_fault(tmp_path: Path) -> None:
    assert list(cluster_faults(config_of(*certified(tmp_path)))) == []
    assert list(cluster_faults(config_of(*ON))) == []


def test_a_certificate_must_have_the_names_that_the_others_dial(tmp_path: Path) -> None:
    sets = (*certified(tmp_path), "cluster.transport.bind_addr=:7948", "cluster.etcd.bind_addr=:2380",
            "cluster.etcd.initial_cluster=one=https://10.0.0.1:2380,two=https://10.0.0.2:2380,three=https://10.0.0.3:1",
            "cluster.transport.peers={one: 'one.example:7948'}")
    found = {fault.path: str(fault) for fault in cluster_faults(config_of(*sets))}
    assert "not valid for '10.0.0.1'" in found["cluster.etcd.tls.cert_file"]
    assert "not valid for 'one.example'" in found["cluster.transport.tls.cert_file"]
    with pytest.raises(ConfigError, match="would be refused by the other nodes"):
        run(config_of(*sets), {}, Note())


@pytest.mark.parametrize(("wrong", "path", "part"), [
    ("authority", "cert_file", "self-signed certificate|unable to get local issuer"),
    ("key", "key_file", "is not the key of"), ("expired", "cert_file", "has expired"),
    ("garbage", "ca_file", "no PEM block"), ("usage", "cert_file", "purpose")])
def test_a_certificate_that_the_other_nodes_refuse_is_a_fault(tmp_path: Path, wrong: str, path: str, part: str) -> None:
    other = make_ca(tmp_path / "other", "another CA")
    if wrong == "authority":
        sets = certified(tmp_path, ca_file=str(other.cert_file))
    elif wrong == "key":
        sets = certified(tmp_path, key_file=issue(other, "two")[1])
    elif wrong == "garbage":
        (tmp_path / "garbage").write_text("nothing")
        sets = certified(tmp_path, ca_file=str(tmp_path / "garbage"))
    else:
        cert, key = issue(other, "one", ip=["127.0.0.1"], expired=wrong == "expired", client=wrong != "usage")
        sets = certified(tmp_path, cert_file=cert, key_file=key, ca_file=str(other.cert_file))
    found = {fault.path: str(fault) for fault in cluster_faults(config_of(*sets))}
    for section in ("etcd", "transport"):
        assert re.search(part, found[f"cluster.{section}.tls.{path}"]), found
