"""Users of a cluster between nodes: one store, and each node's documents and authority."""
from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from cluster.world import NO_MEMBERSHIP, World

from fluxmq._core.errors import AuthError
from fluxmq.access.authority import Authority
from fluxmq.access.users import User
from fluxmq.app.accounts import Accounts
from fluxmq.cluster import keys
from fluxmq.cluster.documents import LIMIT_S, Documents
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.messages import Control
from fluxmq.cluster.ports import Change
from fluxmq.cluster.reaching import Reaching
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.accounts import PermissionRule, UserChange
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model.config import Auth

ANNA, BERT, BERT_ANEW = (User.make(name, password, scram_iterations=4096) for name, password in (
    ("anna", "anna's"), ("bert", "bert's"), ("bert", "other")))


def line(user: User, namespace: str | None = None) -> UserChange:
    return UserChange(name=user.name, password=user.password_hash, scram=str(user.scram), namespace=namespace)


class Member:
    """A node. uses: its clients log in as users of the cluster. deaf: what other nodes send to it waits."""

    def __init__(self, world: World, name: str, uses: bool = True) -> None:
        self.world, self.name = world, name
        self.said: list[str] = []
        self.removed: list[str] = []
        self.deaf = self.without_quorum = self.joined = False
        self.messages: list[tuple[str, Control]] = []
        self.epoch = 0
        self.authority = Authority(cluster_users=uses, cluster_permissions=uses, password_workers=1)
        self.feed = Feed(world.store, world.driver, NO_MEMBERSHIP)
        self.writer = Writer(world.store, world.driver)
        self.reaching = Reaching(world.driver, self.feed, self._others, self._send,
                                 lambda then: then())
        self.documents = Documents(self.writer, world.driver, self.reaching, joined=lambda: self.joined,
                                   without_quorum=lambda: self.without_quorum)
        self.feed.listen(keys.DOCUMENTS, self.documents.on_event)
        self.feed.at_end = [self.documents, self.reaching]
        self.accounts = Accounts(self.documents, self._learn, Auth(cluster_users=uses, cluster_permissions=uses),
                                 lambda level, cause, text, fields: self.said.append(text))

    def start(self) -> Member:
        self.world.store.apply([Change(b"/mqtt/nodes/" + self.name.encode(), b"")])
        self.epoch = self.world.store.counts.revision
        members_of(self.world)[self.name] = self
        self.world.end(self.feed.load())
        self.world.start(self.feed.follow())
        self.world.run(50)
        self.joined = True
        return self

    def _learn(self, users: Any, acl: Any) -> None:
        self.authority.learn(users, acl)
        self.removed += self.authority.removed

    def _others(self) -> dict[str, int]:
        return {name: member.epoch for name, member in members_of(self.world).items() if member is not self}

    def _send(self, name: str, message: Control) -> None:
        other = members_of(self.world)[name]
        other.messages.append((self.name, message))
        while other.messages and not other.deaf:
            other.reaching.on_message(*cast(Any, other.messages.pop(0)))

    def put(self, *changes: UserChange) -> dict[str, Any]:
        done: dict[str, Any] = self.world.end(self.accounts.put_users(changes), 20_000)
        return done

    def remove(self, name: str) -> dict[str, Any]:
        done: dict[str, Any] = self.world.end(self.accounts.remove_user(name), 20_000)
        return done

    def permit(self, user: str, *rules: PermissionRule, namespace: str = "/") -> dict[str, Any]:
        done: dict[str, Any] = self.world.end(self.accounts.set_permission(namespace, user, rules), 20_000)
        return done

    def may(self, user: str | None, topic: str, namespace: str = "/") -> tuple[bool, bool]:
        """(publish, subscribe)."""
        return (bool(self.authority.may_publish(user, "c", topic, namespace)),
                bool(self.authority.may_subscribe(user, "c", topic, namespace)))

    def login(self, name: str | None = "anna", password: str | None = "anna's") -> int:
        """The reason code."""
        try:
            asyncio.run(self.authority.authenticate("c", name, password and password.encode()))
        except AuthError as error:
            return error.reason
        return 0


def members_of(world: World) -> dict[str, Member]:
    return cast(dict[str, Member], world.__dict__.setdefault("members", {}))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    for member in members_of(world).values():
        member.authority.close()


def three(world: World) -> list[Member]:
    return [Member(world, name).start() for name in ("one", "two", "three")]


def logins(members: Sequence[Member], name: str = "anna", password: str = "anna's") -> set[int]:
    return {member.login(name, password) for member in members}


def test_what_is_added_and_removed_on_one_node_holds_on_all_when_the_answer_is_there(world: World) -> None:
    members = three(world)
    assert logins(members) == {0x86}
    assert members[0].put(line(ANNA), line(BERT, "shop")) == {"created": 2, "changed": 0, "behind": ""}
    assert logins(members) == {0} and logins(members, "bert", "bert's") == {0}
    assert {member.authority.namespace_of("bert") for member in members} == {"shop"}
    assert members[1].put(line(BERT_ANEW)) == {"created": 0, "changed": 1, "behind": ""}
    assert logins(members, "bert", "bert's") == {0x86} and logins(members, "bert", "other") == {0}
    assert [(user.name, user.namespace) for user in members[2].accounts.users()] == [("anna", ""), ("bert", "shop")]
    assert members[2].remove("anna") == {"removed": "anna", "behind": ""}
    assert logins(members) == {0x86} and [member.removed for member in members] == [["anna"]] * 3
    with pytest.raises(QueueRefused, match="no user anna"):
        members[0].remove("anna")
    assert members[0].put(line(BERT_ANEW, "")) == {"created": 0, "changed": 1, "behind": ""}
    assert {member.authority.namespace_of("bert") for member in members} == {""}


def test_no_password_is_in_the_store(world: World) -> None:
    [one, *_] = three(world)
    one.put(line(ANNA))
    assert json.loads(world.store.items[b"/mqtt/users/anna"].value) == {
        "password": ANNA.password_hash, "scram": str(ANNA.scram), "namespace": ""}
    assert not any(b"anna's" in item.value for item in world.store.items.values())


def test_a_node_that_has_been_told_nothing_lets_nobody_in(world: World) -> None:
    three(world)[0].put(line(ANNA))
    late = Member(world, "late")
    late.authority._anonymous = True            # as with auth.allow_anonymous
    assert late.login() == late.login(None, None) == 0x88
    with pytest.raises(AuthError, match="does not know the users"):
        late.authority.authenticate_now("c", None, None, {"subject": ((("commonName", "anna"),),)}, "cn")
    late.start()
    assert late.login() == late.login(None, None) == 0


def test_a_cluster_without_users_lets_nobody_in_and_takes_the_first(world: World) -> None:
    members = three(world)
    assert {member.authority.waits for member in members} == {False}
    assert logins(members) == {0x86} and members[0].login(None, None) == 0x87
    members[1].put(line(ANNA))
    assert logins(members) == {0}


def test_all_nodes_answer_for_unknown_names_with_the_same_salts(world: World) -> None:
    members = three(world)
    members[0].put(line(ANNA))
    key = members[0].authority._users.decoy_key
    members[1].put(line(BERT))
    later = Member(world, "late").start()
    assert {member.authority._users.decoy_key for member in (*members, later)} == {key}


def test_two_nodes_change_the_same_user_at_once(world: World) -> None:
    members = three(world)
    works = [world.start(member.accounts.put_users([line(user)])) for member, user in
             ((members[0], BERT), (members[1], BERT_ANEW))]
    world.run(1000)
    assert sorted(work.result()["created"] for work in works) == [0, 1]
    assert len({member.authority._users.password_hash("bert") for member in members}) == 1
    assert len({member.authority._users.decoy_key for member in members}) == 1


def test_many_at_once(world: World) -> None:
    members = three(world)
    many = [UserChange(name=f"user{number}", password=ANNA.password_hash, scram=str(ANNA.scram))
            for number in range(500)]
    before = len(world.store.transactions)
    assert members[0].put(*many)["created"] == 500
    assert len(world.store.transactions) - before < 20
    assert {len(member.authority._users) for member in members} == {500}


@pytest.mark.parametrize("wrong", [
    {"name": "an na"}, {"password": "secret"}, {"scram": "secret"}, {"namespace": "a/\0"},
    {"password": ANNA.password_hash.replace("m=19456", "m=999999999")}])
def test_what_no_user_can_have_is_refused_as_in_a_file(world: World, wrong: dict[str, str]) -> None:
    [one, *_] = three(world)
    about = {"name": "anna", "password": ANNA.password_hash, "scram": str(ANNA.scram), "namespace": ""} | wrong
    with pytest.raises(QueueRefused) as refused:
        one.put(line(BERT), UserChange(**about))
    assert refused.value.kind == "invalid" and not one.accounts.users()


def test_without_quorum_a_node_goes_on_with_what_it_knows_and_changes_nothing(world: World) -> None:
    members = three(world)
    members[0].put(line(ANNA))
    members[0].without_quorum = True
    with pytest.raises(QueueRefused, match="no quorum") as refused:
        members[0].remove("anna")
    assert refused.value.kind == "unavailable" and logins(members) == {0}
    members[0].without_quorum = False
    world.store.counts.fail = 10**9
    with pytest.raises(QueueRefused, match="cannot change this now") as refused:
        members[0].put(line(BERT))
    assert refused.value.kind == "unavailable" and logins(members) == {0}


def test_a_node_that_joins_changes_nothing(world: World) -> None:
    with pytest.raises(QueueRefused, match="has not joined"):
        Member(world, "one").put(line(ANNA))


def test_a_node_that_does_not_hear_of_it_is_named(world: World) -> None:
    members = three(world)
    members[2].deaf = True
    assert "three did not hear of it within" in members[0].put(line(ANNA))["behind"]
    assert LIMIT_S < 30 and members[1].login() == 0


def test_an_answer_that_is_lost_is_no_second_change(world: World) -> None:
    members = three(world)
    members[0].put(line(BERT))
    world.store.counts.lose_answers = 1
    assert members[0].put(line(ANNA)) == {"created": 1, "changed": 0, "behind": ""}
    assert logins(members) == {0}


def test_what_somebody_else_has_written_is_no_user_and_said(world: World) -> None:
    members = three(world)
    world.store.apply([Change(b"/mqtt/users/anna", b"rubbish"), Change(b"/mqtt/users/\xff", b"{}"),
                       Change(b"/mqtt/user-decoy", b"{}")])
    world.run(100)
    assert logins(members) == {0x86} and len(members[0].said) == 1
    assert members[0].put(line(ANNA))["changed"] == 1 and logins(members) == {0}


def test_a_node_with_a_file_does_not_use_them_but_changes_them(world: World) -> None:
    two, three = Member(world, "two").start(), Member(world, "three", uses=False).start()
    three.put(line(ANNA))
    assert two.login() == 0 and not three.authority.has_user("anna") and not three.accounts.users_used


def test_a_watch_that_begins_anew(world: World) -> None:
    members = three(world)
    members[0].put(line(ANNA), line(BERT))
    world.store.apply([Change(b"/mqtt/users/anna", None)])
    world.store.compact()
    world.run(1000)
    assert logins(members) == {0x86} and logins(members, "bert", "bert's") == {0}


def allow(verb: str, *topics: str, client: tuple[str, ...] = ()) -> PermissionRule:
    return PermissionRule(allow=verb, topics=topics, client=client)


def deny(verb: str, *topics: str) -> PermissionRule:
    return PermissionRule(deny=verb, topics=topics)


def test_permissions_hold_on_all_nodes_when_the_answer_is_there(world: World) -> None:
    members = three(world)
    assert {member.may("anna", "a") for member in members} == {(False, False)}
    assert members[0].permit("anna", allow("publish", "a"), allow("all", "b/#")) == {"result": "created", "behind": ""}
    assert {member.may("anna", "a") for member in members} == {(True, False)}
    assert {member.may("anna", "b/c") for member in members} == {(True, True)}
    assert {member.may("bert", "b/c") for member in members} == {(False, False)}
    generations = [member.authority.generation for member in members]
    assert members[1].permit("anna", allow("subscribe", "a"))["result"] == "changed"
    assert {member.may("anna", "a") for member in members} == {(False, True)}
    assert all(member.authority.generation > before for member, before in zip(members, generations, strict=True))
    assert world.end(members[2].accounts.remove_permission("/", "anna"))["removed"]
    assert {member.may("anna", "a") for member in members} == {(False, False)}
    with pytest.raises(QueueRefused, match="no permissions"):
        world.end(members[2].accounts.remove_permission("/", "anna"))
    assert not any(member.authority.open_publish or member.authority.open_subscribe for member in members)


def test_what_everybody_is_denied_decides_first_and_what_everybody_is_allowed_last(world: World) -> None:
    [one, *_] = three(world)
    one.permit("*", allow("all", "news/#", "inbox/%u"), deny("all", "vault/#"))
    one.permit("anna", allow("all", "vault/#", "own"), deny("publish", "news/#"))
    one.permit("#anonymous", allow("subscribe", "public"))
    assert one.may("anna", "vault/x") == (False, False)
    assert one.may("anna", "own") == (True, True) and one.may("anna", "news/x") == (False, True)
    assert one.may("bert", "own") == (False, False) and one.may("bert", "news/x") == (True, True)
    assert one.may("anna", "inbox/anna") == (True, True) and one.may("anna", "inbox/bert") == (False, False)
    assert one.may(None, "public") == (False, True) and one.may(None, "news/x") == (False, False)


def test_permissions_are_of_a_namespace_or_of_all(world: World) -> None:
    [one, *_] = three(world)
    one.permit("anna", allow("all", "a"), namespace="shop")
    one.permit("anna", allow("all", "b"), namespace="*")
    one.permit("anna", allow("all", "c"))
    assert [one.may("anna", topic, "shop") for topic in "abc"] == [(True, True), (True, True), (False, False)]
    assert [one.may("anna", topic, "/") for topic in "abc"] == [(False, False), (True, True), (True, True)]
    assert one.may("anna", "$vhost/shop") == (True, True)
    assert sorted(key for key in world.store.items if b"permissions" in key) == [
        b"/mqtt/permissions/%2F/anna", b"/mqtt/permissions/*/anna", b"/mqtt/permissions/shop/anna"]


def test_a_rule_about_clients(world: World) -> None:
    [one, *_] = three(world)
    one.permit("anna", allow("all", "a", client=("x", "y*")))
    assert one.may("anna", "a") == (False, False)
    one.permit("anna", allow("all", "a", client=("x", "c*")))
    assert one.may("anna", "a") == (True, True)


def test_the_permissions_of_a_user_go_with_it(world: World) -> None:
    members = three(world)
    members[0].put(line(ANNA), line(BERT))
    for user in ("anna", "bert"):
        members[0].permit(user, allow("all", "#"))
        members[0].permit(user, allow("all", "#"), namespace="shop")
    members[1].remove("anna")
    members[1].put(line(ANNA))
    assert {member.may("anna", "a") for member in members} == {(False, False)}
    assert [(one.namespace, one.user) for one in members[2].accounts.permissions()] == [("/", "bert"), ("shop", "bert")]


def test_before_anything_is_known_everything_is_denied(world: World) -> None:
    three(world)[0].permit("*", allow("all", "#"))
    late = Member(world, "late")
    assert late.may("anna", "a") == late.may(None, "a") == (False, False)
    assert not late.authority.open_publish and not late.authority.open_subscribe
    late.start()
    assert late.may("anna", "a") == (True, True)


@pytest.mark.parametrize("rule", [
    PermissionRule(topics=("a",)), PermissionRule(allow="all", deny="all", topics=("a",)), allow("read", "a"),
    allow("all"), allow("all", "a/#/b"), allow("all", "%x"), allow("all", "$share/g/a")])
def test_what_no_access_list_takes_is_refused(world: World, rule: PermissionRule) -> None:
    [one, *_] = three(world)
    with pytest.raises(QueueRefused, match="rule 2") as refused:
        one.permit("anna", allow("all", "a"), rule)
    assert refused.value.kind == "invalid" and not one.accounts.permissions()


@pytest.mark.parametrize("user", ["anna", "*"])
def test_permissions_that_cannot_be_read_deny_everything(world: World, user: str) -> None:
    [one, *_] = three(world)
    one.permit("*", allow("all", "#"))
    one.permit("anna", allow("all", "#"))
    world.store.apply([Change(keys.document_key(keys.PERMISSION, b"shop", user.encode()), b'{"rules": [{"x": 1}]}')])
    world.run(100)
    assert one.may("anna", "a") == (False, False) and one.may("bert", "a") == ((True, True) if user == "anna" else
                                                                                (False, False))
    assert len(one.said) == 1 and [p.rules for p in one.accounts.permissions() if p.namespace == "shop"] == [None]
    one.permit(user, namespace="shop")
    assert one.may("anna", "a") == (True, True)


def test_permissions_without_quorum(world: World) -> None:
    members = three(world)
    members[0].permit("anna", allow("all", "a"))
    members[0].without_quorum = True
    with pytest.raises(QueueRefused) as refused:
        members[0].permit("anna")
    assert refused.value.kind == "unavailable" and members[0].may("anna", "a") == (True, True)


def test_the_last_user_and_the_last_permission_go(world: World) -> None:
    members = three(world)
    members[0].put(line(ANNA))
    members[0].permit("anna", allow("all", "a"))
    members[0].remove("anna")
    assert logins(members) == {0x86} and {member.may("anna", "a") for member in members} == {(False, False)}
