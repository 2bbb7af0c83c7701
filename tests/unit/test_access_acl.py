"""The access list: which rule decides, what names may not do, and what the loader says of a bad file."""
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq._core.errors import ConfigError
from fluxmq.access import acl as acl_module
from fluxmq.access.acl import Acl, _glob_matches
from fluxmq.access.acl_file import load_acl, parse_acl
from fluxmq.model.virtual_hosts import virtual_host_topic


def rules(text: str) -> Acl:
    body = "".join(f"  - {line.strip()}\n" for line in text.strip().splitlines())
    return parse_acl(f"version: 1\nrules:\n{body}")


def test_what_no_rule_decides_is_denied() -> None:
    empty = parse_acl("version: 1\nrules: []")
    assert not empty.may_publish("anna", "c", "a")
    assert not empty.may_subscribe("anna", "c", "a")
    acl = rules('{allow: publish, topics: ["a/#"]}')
    assert acl.may_publish(None, "c", "a/b") and acl.may_publish(None, "c", "a")
    assert not acl.may_publish(None, "c", "b")
    assert not acl.may_subscribe(None, "c", "a/b")


def test_the_first_rule_that_decides_wins() -> None:
    acl = rules("""
        {deny: publish, topics: [a/b]}
        {allow: all, topics: ["a/+"]}
        {deny: all, topics: ["a/#"]}
        {allow: publish, topics: ["#"]}
    """)
    assert not acl.may_publish(None, "c", "a/b")
    assert acl.may_publish(None, "c", "a/c")
    assert not acl.may_publish(None, "c", "a/c/d")
    assert acl.may_publish(None, "c", "b")
    assert acl.may_subscribe(None, "c", "a/b")
    assert not acl.may_subscribe(None, "c", "a/#")
    assert not acl.may_subscribe(None, "c", "b")


def test_a_subscription_must_be_covered_and_may_not_overlap_what_is_denied() -> None:
    acl = rules("""
        {deny: subscribe, topics: ["secret/#"]}
        {allow: subscribe, topics: ["#"]}
    """)
    for refused in ("#", "+/x", "+", "+/+/x", "secret", "secret/#", "secret/+/a", "$share/g/#", "$share/g/+/x"):
        assert not acl.may_subscribe(None, "c", refused), refused
    for allowed in ("open/#", "open", "a/+/x", "$share/g/open/#", "secrets/#"):
        assert acl.may_subscribe(None, "c", allowed), allowed
    narrow = rules('{allow: subscribe, topics: ["plant/+/state", "plant/1/#"]}')
    for allowed in ("plant/+/state", "plant/7/state", "plant/1/#", "plant/1"):
        assert narrow.may_subscribe(None, "c", allowed), allowed
    for refused in ("plant/#", "plant/+/+", "plant/+/state/#", "#", "$share/g/plant/#", "$share/g", "$share//plant/1"):
        assert not narrow.may_subscribe(None, "c", refused), refused


def test_wildcards_do_not_reach_the_brokers_topics() -> None:
    acl = rules('{allow: all, topics: ["#", "+/broker/#"]}')
    assert acl.may_publish(None, "c", "a/broker/x")
    assert not acl.may_publish(None, "c", "$SYS/broker/x")
    assert not acl.may_subscribe(None, "c", "$SYS/#")
    assert rules('{allow: all, topics: ["$SYS/#"]}').may_subscribe(None, "c", "$SYS/broker/+")


def test_users_clients_anonymous() -> None:
    acl = rules("""
        {allow: publish, user: anna, topics: [anna]}
        {allow: publish, user: [bert, 42], topics: [some]}
        {allow: publish, user: "*", topics: [named]}
        {allow: publish, anonymous: true, topics: [unnamed]}
        {allow: publish, client: "panel-?", topics: [panel]}
        {allow: publish, client: ["x*y", lone], user: anna, topics: [both]}
    """)

    def may(user: str | None, client_id: str = "c") -> set[str]:
        topics = ("anna", "some", "named", "unnamed", "panel", "both")
        return {topic for topic in topics if acl.may_publish(user, client_id, topic)}

    assert may("anna") == {"anna", "named"}
    assert may("bert") == may("42") == {"some", "named"}
    assert may("*") == {"named"}
    assert may(None) == {"unnamed"}
    assert may("anna", "panel-1") == {"anna", "named", "panel"}
    assert may(None, "panel-12") == {"unnamed"}
    assert may("anna", "x[1]y") == may("anna", "lone") == {"anna", "named", "both"}
    assert may("bert", "lone") == {"some", "named"}


def test_placeholders() -> None:
    acl = rules("""
        {allow: all, topics: ["dev/%c/#", "%u/in", "100%%/%u-%c"]}
    """)
    assert acl.may_publish("anna", "c1", "dev/c1/temp") and acl.may_subscribe("anna", "c1", "dev/c1/#")
    assert not acl.may_publish("anna", "c1", "dev/c2/temp")
    assert acl.may_publish("anna", "c1", "anna/in") and acl.may_publish("anna", "c1", "100%/anna-c1")
    assert not acl.may_publish(None, "c1", "/in") and not acl.may_publish(None, "c1", "100%/-c1")
    assert acl.may_publish("%c", "x", "%c/in") and not acl.may_publish("%c", "x", "x/in")


@pytest.mark.parametrize("name", ["+", "#", "a/b", "x+y", "x#", "/", ""])
def test_a_name_does_not_widen_a_rule(name: str) -> None:
    acl = rules('{allow: all, topics: ["dev/%c/in", "user/%u/#"]}')
    for topic in ("dev/c/in", "dev//in", f"dev/{name}/in", "user/u/x", f"user/{name}/x", "user/a/b/x", "user"):
        assert not acl.may_publish(name or None, name, topic), topic
        assert not acl.may_subscribe(name or None, name, topic), topic


def test_a_name_does_not_lead_to_the_brokers_topics() -> None:
    acl = rules('{allow: all, topics: ["%c/#", "x/%c"]}')
    assert acl.may_subscribe(None, "c", "c/#") and acl.may_subscribe(None, "$SYS", "x/$SYS")
    assert not acl.may_subscribe(None, "$SYS", "$SYS/#")
    assert not acl.may_publish(None, "$SYS", "$SYS/broker/version")


def test_a_name_does_not_lead_out_of_a_denial() -> None:
    acl = rules("""
        {deny: all, topics: ["private/%c/#", "%u/private"]}
        {allow: all, topics: ["#", "$SYS/#"]}
    """)
    for client_id in ("c", "a/b", "$SYS"):
        assert not acl.may_publish(None, client_id, f"private/{client_id}/x")
        assert not acl.may_publish(client_id, "other", f"{client_id}/private")
        assert acl.may_publish(None, client_id, "private/other/x")
    assert acl.may_publish(None, "#", "private/other/x")


def test_the_rules_of_a_namespace_do_not_hold_for_one_below_its_name() -> None:
    acl = rules("""
        {allow: all, user: anna, topics: ["$vhost/a/#"]}
        {allow: all, user: bert, namespace: a/b, topics: ["#"]}
        {allow: all, user: carl, topics: ["$vhost/+/#"]}
        """)
    for namespace, users in (("a", {"anna", "carl"}), ("a/b", {"bert", "carl"}), ("a%2Fb", {"carl"})):
        enters = virtual_host_topic(namespace)
        for user in ("anna", "bert", "carl"):
            asked = [acl.may_publish(user, "c", "x/y", namespace), acl.may_subscribe(user, "c", "#", namespace),
                     acl.may_publish(user, "c", enters), acl.may_subscribe(user, "c", enters)]
            assert asked == [user in users] * 4, (namespace, user)


def test_the_memory_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_module, "VIEWS_MAX", 4)
    acl = rules('{allow: all, topics: ["dev/%c"]}')
    for index in range(30):
        assert acl.may_publish(None, f"c{index}", f"dev/c{index}")
        assert not acl.may_publish(None, f"c{index}", "dev/c0") or index == 0
        assert len(acl._views) <= 4


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_globs(glob: str, text: str) -> None:
    def naive(glob: str, text: str) -> bool:
        if not glob:
            return not text
        if glob[0] == "*":
            return naive(glob[1:], text) or (bool(text) and naive(glob, text[1:]))
        return bool(text) and glob[0] in ("?", text[0]) and naive(glob[1:], text[1:])

    assert _glob_matches(glob, text) == naive(glob, text)


@pytest.mark.parametrize(("text", "start", "words"), [
    ("", "", "version: 1"),
    ("[]", "line 1: ", "version: 1"),
    ("version: 1", "line 1: ", "both"),
    ("version: 2\nrules: []", "line 1: ", "version 1"),
    ("version: 1\nrules: x", "line 2: ", "must be a list"),
    ("version: 1\nrule: []", "line 2: ", "did you mean `rules`"),
    ("version: 1\nversion: 1\nrules: []", "line 2: ", "twice"),
    ("version: 1\nrules:\n  - allow", "line 3: rule 1: ", "a mapping"),
    ("version: 1\nrules:\n  - {topics: [a]}", "line 3: rule 1: ", "either"),
    ("version: 1\nrules:\n  - {allow: all, deny: all, topics: [a]}", "line 3: rule 1: ", "either"),
    ("version: 1\nrules:\n  - {allow: write, topics: [a]}", "line 3: rule 1: ", "`allow: write`"),
    ("version: 1\nrules:\n  - {allow: all}", "line 3: rule 1: ", "needs `topics`"),
    ("version: 1\nrules:\n  - {allow: all, topics: []}", "line 3: rule 1: ", "empty"),
    ("version: 1\nrules:\n  - {allow: all, topics: [a]}\n  - allow: all\n    topic: [a]", "line 5: rule 2: ",
     "did you mean `topics`"),
    ("version: 1\nrules:\n  - allow: all\n    topics:\n      - a/b\n      - a/#/b", "line 6: rule 1: ", "`a/#/b`"),
    ("version: 1\nrules:\n  - allow: all\n    topics:\n      - #", "line 5: rule 1: ", 'write "#"'),
    ("version: 1\nrules:\n  - {allow: all, topics: ['a/%x']}", "line 3: rule 1: ", "after %"),
    ("version: 1\nrules:\n  - {allow: all, topics: ['a/%']}", "line 3: rule 1: ", "after %"),
    ("version: 1\nrules:\n  - {allow: all, topics: ['$share/g/a']}", "line 3: rule 1: ", "filter alone"),
    ("version: 1\nrules:\n  - {allow: all, user: , topics: [a]}", "line 3: rule 1: ", "`user` is empty"),
    ("version: 1\nrules:\n  - {allow: all, user: {a: b}, topics: [a]}", "line 3: rule 1: ", "`user`"),
    ("version: 1\nrules:\n  - {allow: all, anonymous: no, topics: [a]}", "line 3: rule 1: ", "`anonymous` is true"),
    ("version: 1\nrules:\n  - {allow: all, anonymous: true, user: a, topics: [a]}", "line 3: rule 1: ", "exclude"),
    ("version: 1\nrules:\n  - {allow: all, user: *, topics: [a]}", "line 3: ", "quote"),
    ("version: 1\nrules:\n  - allow: all\n    topics: [%c/x]", "line 4: ", "quote"),
    ("version: 1\nrules:\n  - allow: all\n    topics: [a]\n  - deny: all\n    topics: [#]", "line 6: rule 2: ",
     'write "#"'),
    ("version: 1\nrules:\n  - {allow: all, topics: [a/b, #], user: c}", "line 3: rule 1: ", 'write "#"'),
    ("version: 1\nrules:\n  - {allow: all, topics: ['a#', b#c", "line 3: ", "not YAML"),
    ("version: 1\nrules: [", "line 2: ", "not YAML"),
    ("a: \x00", "", "not YAML"),
    ("[" * 5_000, "", "not YAML"),
])
def test_a_bad_file_is_told_by_line_and_rule(text: str, start: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_acl(text, "acl.yaml")
    assert refused.value.path == "acl.yaml"
    assert refused.value.text.startswith(start) and words in refused.value.text, refused.value.text


@given(st.text(max_size=60) | st.lists(st.sampled_from(
    ["version: 1\n", "rules:\n", "  - allow: all\n", "    topics: ", "[a, '%c/#']\n", "'#'\n", "&x ", "*x\n", "{"]),
    max_size=9).map("".join))
def test_any_text_loads_or_is_told(text: str) -> None:
    try:
        acl = parse_acl(text, "acl.yaml")
    except ConfigError:
        return
    acl.may_subscribe("anna", "c", "a/#")


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "acl.yaml"
    with pytest.raises(ConfigError, match="no such access list"):
        load_acl(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_acl(tmp_path)
    file.write_bytes(b"\xff\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_acl(file)
    file.write_text('\ufeffversion: 1\nrules:\n  - {allow: all, topics: "#"}\n')
    assert load_acl(file).may_publish(None, "c", "a")


def test_the_example_of_the_guide_is_valid() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "access.md").read_text()
    examples = [block.split("```")[0] for block in guide.split("```yaml\n")[1:]]
    lists = [text for text in examples if text.startswith("version:")]
    assert lists
    for text in lists:
        assert parse_acl(text).rules
