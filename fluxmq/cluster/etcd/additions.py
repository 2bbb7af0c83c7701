"""Messages of etcd 3.4 and later in which the definitions of the etcd3 package lack fields.

The same as proto/etcd_additions.proto, which says what each is for. The classes are made here from the text of their
fields, in a pool of their own; so no compiler of protocol buffers is needed, and nothing is registered that another
client of etcd in this process could register too.
"""
from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

__all__ = ["MEMBER_ADD", "MEMBER_LIST", "MEMBER_PROMOTE", "MEMBER_REMOVE", "MEMBER_UPDATE", "MESSAGES", "STATUS",
           "WATCH", "MemberAddRequest", "MemberListRequest", "MemberPromoteRequest", "MemberRemoveRequest",
           "MemberUpdateRequest", "Method", "StatusRequest", "WatchRequest", "definition"]

PACKAGE = "fluxmq.etcd"
MESSAGES = {
    "ResponseHeader": "uint64 cluster_id = 1; uint64 member_id = 2; int64 revision = 3; uint64 raft_term = 4;",
    "Member": "uint64 ID = 1; string name = 2; repeated string peerURLs = 3; repeated string clientURLs = 4; "
              "bool isLearner = 5;",
    "MemberAddRequest": "repeated string peerURLs = 1; bool isLearner = 2;",
    "MemberAddResponse": "ResponseHeader header = 1; Member member = 2; repeated Member members = 3;",
    "MemberRemoveRequest": "uint64 ID = 1;",
    "MemberUpdateRequest": "uint64 ID = 1; repeated string peerURLs = 2;",
    "MemberPromoteRequest": "uint64 ID = 1;",
    "MemberListRequest": "bool linearizable = 1;",
    "MembersResponse": "ResponseHeader header = 1; repeated Member members = 2;",
    "StatusRequest": "",
    "StatusResponse": "ResponseHeader header = 1; string version = 2; int64 dbSize = 3; uint64 leader = 4; "
                      "uint64 raftIndex = 5; uint64 raftTerm = 6; uint64 raftAppliedIndex = 7; "
                      "repeated string errors = 8; int64 dbSizeInUse = 9; bool isLearner = 10;",
    "KeyValue": "bytes key = 1; int64 create_revision = 2; int64 mod_revision = 3; int64 version = 4; "
                "bytes value = 5; int64 lease = 6;",
    "Event": "int32 type = 1; KeyValue kv = 2;",
    "WatchCreateRequest": "bytes key = 1; bytes range_end = 2; int64 start_revision = 3; bool progress_notify = 4; "
                          "bool fragment = 8;",
    "WatchProgressRequest": "",
    "WatchRequest": "WatchCreateRequest create_request = 1; WatchProgressRequest progress_request = 3;",
    "WatchResponse": "ResponseHeader header = 1; int64 watch_id = 2; bool created = 3; bool canceled = 4; "
                     "int64 compact_revision = 5; string cancel_reason = 6; bool fragment = 7; "
                     "repeated Event events = 11;",
}
_TYPES = {
    "uint64": FieldDescriptorProto.TYPE_UINT64, "int64": FieldDescriptorProto.TYPE_INT64,
    "int32": FieldDescriptorProto.TYPE_INT32, "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING, "bytes": FieldDescriptorProto.TYPE_BYTES,
}


def definition() -> FileDescriptorProto:
    """What protoc makes of proto/etcd_additions.proto."""
    file = FileDescriptorProto(name="etcd_additions.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = DescriptorProto(name=name)
        for field in filter(None, (part.split() for part in fields.split(";"))):
            *label, kind, called, _, number = field
            made = message.field.add(name=called, number=int(number))
            made.label = FieldDescriptorProto.LABEL_REPEATED if label else FieldDescriptorProto.LABEL_OPTIONAL
            if kind in _TYPES:
                made.type = _TYPES[kind]
            else:
                made.type, made.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
        file.message_type.append(message)
    return file


_pool = DescriptorPool()
_pool.AddSerializedFile(definition().SerializeToString())
_classes: dict[str, Any] = {name: GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
                            for name in MESSAGES}

MemberAddRequest = _classes["MemberAddRequest"]
MemberListRequest = _classes["MemberListRequest"]
MemberPromoteRequest = _classes["MemberPromoteRequest"]
MemberRemoveRequest = _classes["MemberRemoveRequest"]
MemberUpdateRequest = _classes["MemberUpdateRequest"]
StatusRequest = _classes["StatusRequest"]
WatchRequest = _classes["WatchRequest"]


class Method:
    """A method of a service: its path, and the class of its answer."""

    def __init__(self, path: str, answer: str) -> None:
        self.path = f"/etcdserverpb.{path}"
        self._answer = _classes[answer]

    def unary(self, channel: Any) -> Any:
        """The method on a channel: one request, one answer."""
        return channel.unary_unary(self.path, request_serializer=_serialize,
                                   response_deserializer=self._answer.FromString)

    def stream(self, channel: Any) -> Any:
        """The method on a channel: requests and answers as they come."""
        return channel.stream_stream(self.path, request_serializer=_serialize,
                                     response_deserializer=self._answer.FromString)


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


MEMBER_ADD = Method("Cluster/MemberAdd", "MemberAddResponse")
MEMBER_LIST = Method("Cluster/MemberList", "MembersResponse")
MEMBER_PROMOTE = Method("Cluster/MemberPromote", "MembersResponse")
MEMBER_REMOVE = Method("Cluster/MemberRemove", "MembersResponse")
MEMBER_UPDATE = Method("Cluster/MemberUpdate", "MembersResponse")
STATUS = Method("Maintenance/Status", "StatusResponse")
WATCH = Method("Watch/Watch", "WatchResponse")
