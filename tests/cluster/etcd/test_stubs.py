"""The stubs of the etcd3 package with a protobuf that it was not made for, and our own definitions beside them."""
from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from kit.python import environment
from kit.tree import ROOT

from fluxmq.cluster.etcd.additions import MESSAGES, StatusRequest, WatchRequest, definition
from fluxmq.cluster.etcd.stubs import install, kv, rpc, services

PROTO = ROOT / "proto" / "etcd_additions.proto"


def python(program: str) -> str:
    """What a new interpreter prints that runs the program, with warnings as errors."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], env=environment(), capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_messages_go_to_bytes_and_back() -> None:
    request = rpc.TxnRequest(
        compare=[rpc.Compare(key=b"k", target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=7)],
        success=[rpc.RequestOp(request_put=rpc.PutRequest(key=b"k", value=b"v", lease=3))])
    again = rpc.TxnRequest.FromString(request.SerializeToString())
    assert again == request and again.success[0].WhichOneof("request") == "request_put"
    assert kv.Event.DELETE == 1 and hasattr(services, "KVStub")


def test_the_package_itself_works_after_install() -> None:
    """Also when it is installed twice, and no finder stands twice in the way of every import."""
    assert python("import sys\n"
                  "from fluxmq.cluster.etcd.stubs import install\n"
                  "before = len(sys.meta_path); install(); install()\n"
                  "import etcd3\n"
                  "print(len(sys.meta_path) - before, etcd3.__version__)\n"
                  ).split() == ["0", "0.12.0"]
    install()


def test_nothing_is_registered_in_the_pool_of_everybody() -> None:
    """Another client of etcd registers files and messages of the same names there."""
    assert python("from google.protobuf import descriptor_pb2, descriptor_pool\n"
                  "import fluxmq.cluster.etcd.stubs, fluxmq.cluster.etcd.additions\n"
                  "pool = descriptor_pool.Default()\n"
                  "for name, package in [('kv.proto', 'mvccpb'), ('auth.proto', 'authpb'), ('rpc.proto', 'x')]:\n"
                  "    file = descriptor_pb2.FileDescriptorProto(name=name, package=package)\n"
                  "    file.message_type.add(name='KeyValue').field.add(name='other', number=9, type=5, label=1)\n"
                  "    pool.AddSerializedFile(file.SerializeToString())\n"
                  "    print(pool.FindFileByName(name).message_types_by_name['KeyValue'].fields[0].name)\n"
                  ).split() == ["other"] * 3


def test_another_version_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "etcd3" / "etcdrpc"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "kv_pb2.py").write_text("DESCRIPTOR = None\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import fluxmq.cluster.etcd.stubs"
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode != 0 and "pip install etcd3==0.12.0" in done.stderr


def proto_messages() -> dict[str, str]:
    """Name → fields in the file, without comments and with single spaces."""
    text = re.sub(r"//.*", "", PROTO.read_text())
    return {name: " ".join(fields.split()) for name, fields in re.findall(r"message (\w+) \{([^}]*)\}", text)}


def test_our_definitions_are_those_of_the_file() -> None:
    assert proto_messages() == MESSAGES


def test_our_descriptor_is_that_of_protoc(tmp_path: Path) -> None:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed: the compiler of protocol buffers is in it")
    out = tmp_path / "set"
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO.parent}", f"--descriptor_set_out={out}",
                    str(PROTO)], check=True, timeout=60)
    compiled = FileDescriptorSet.FromString(out.read_bytes()).file[0]
    for message in compiled.message_type:
        for field in message.field:
            field.ClearField("json_name")
    assert compiled == definition()
    assert isinstance(definition(), FileDescriptorProto)


def test_our_messages_are_those_of_the_package_on_the_wire() -> None:
    """What both define has the same bytes."""
    ours = WatchRequest(create_request={"key": b"k", "range_end": b"l", "start_revision": 9, "progress_notify": True})
    theirs = rpc.WatchRequest(create_request=rpc.WatchCreateRequest(key=b"k", range_end=b"l", start_revision=9,
                                                                    progress_notify=True))
    assert ours.SerializeToString() == theirs.SerializeToString()
    assert StatusRequest().SerializeToString() == rpc.StatusRequest().SerializeToString() == b""
