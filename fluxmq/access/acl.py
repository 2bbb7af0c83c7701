"""The access list: who may publish and subscribe to what. An ordered list of rules in YAML; docs/guide/access.md.

    version: 1
    rules:
      - allow: subscribe             # allow | deny: publish | subscribe | all
        user: [anna, bert]           # optional; "*" is every client with a user name
        client: "panel-*"            # optional; client identifiers, * and ? as in a shell
        anonymous: true              # optional, instead of user: clients without a user name only
        namespace: shop              # optional, or a list; "*" is every namespace
        topics: ["plant/+/state"]    # %c client identifier, %u user name, %% a per cent sign

The first rule that decides wins, and what no rule decides is denied. A rule that fits the client decides
  - a publish when one of its filters matches the topic;
  - a subscription, if it allows, when one of its filters covers the requested filter;
  - a subscription, if it denies, when one of its filters overlaps the requested filter: so a denied topic cannot be
    read through a wildcard that happens to include it.

A rule with `namespace` speaks of the topics that are there, of MQTT and AMQP (edge/amqp091/permissions.py) alike. One
without speaks of "/", and of a topic of another namespace as `$vhost/<namespace>/<topic>`: so "#" is about "/" alone,
and what was written for virtual hosts holds for them. A topic that is published to amq.topic there was and is also
`$vhost/<namespace>/$exchange/amq.topic/<topic>`. A namespace whose name has a slash is one level of that, `a%2Fb`, so
only `namespace` speaks of it.

A client may enter a namespace when it may publish or subscribe to `$vhost/<namespace>`: so says a rule that allows
something in that `namespace`, or one without that covers this topic. One that denies "#" there keeps clients out.
"""
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fluxmq.access.filters import filter_problem, levels_cover, levels_overlap, shared_filter
from fluxmq.model.virtual_hosts import entered, virtual_host_topic

__all__ = ["ANONYMOUS", "EVERYBODY", "VERBS", "Acl", "AclByUser", "Rule", "topic_problem"]

VERBS = ("publish", "subscribe", "all")
EVERYBODY = "*"  # every client with a user name
ANONYMOUS = "#anonymous"  # where a user's name would stand; no user's name begins with "#"
VIEWS_MAX = 4_096  # clients whose rules are kept ready; at some hundred bytes each

_PLACEHOLDER = re.compile(r"%([%cu])")
_ROOT = "/"
_ANY = "*"
# What a decision is about: topics as they are in the namespace, topics as `$vhost/<namespace>/<topic>`, or whether to
# enter one of the namespaces that stand in the place of levels.
_INSIDE, _OUTSIDE, _ENTER = range(3)
_Decision = tuple[bool, tuple[str, ...], int]  # allows, filter in levels, what about
_Decisions = list[_Decision]  # in the order of the file


@dataclass(frozen=True, slots=True)
class Rule:
    """Value. One rule, as written.

    verb: one of VERBS. users: empty for all clients, "*" for every user name. clients: globs, empty for all.
    anonymous: only clients without a user name. topics: filters with placeholders, checked by the loader. namespaces:
    empty where the rule names none.
    """

    allows: bool
    verb: str
    topics: tuple[str, ...]
    users: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    anonymous: bool = False
    namespaces: tuple[str, ...] = ()

    def fits(self, user: str | None, client_id: str) -> bool:
        """Whether the rule speaks of this client. user: None for a client without a user name."""
        if self.anonymous and user is not None:
            return False
        if self.users and (user is None or ("*" not in self.users and user not in self.users)):
            return False
        return not self.clients or any(_glob_matches(glob, client_id) for glob in self.clients)

    def filters(self, user: str | None, client_id: str) -> Iterable[tuple[str, ...]]:
        """The rule's filters for this client, in levels; those that its names do not fit into are left out."""
        for template in self.topics:
            levels = self._expand(template, user, client_id)
            if levels is not None:
                yield levels

    def _expand(self, template: str, user: str | None, client_id: str) -> tuple[str, ...] | None:
        # Chosen by the client, a name could widen an allowing rule: a wildcard in it, a level more, or a `$` in first
        # place, which leads to the broker's own topics. A denying rule takes a name as it is: `/` then denies exactly
        # the topics of that name, and wildcards stand in no topic, so there is nothing to deny.
        forbidden = "+#/" if self.allows else "+#"
        names = {"c": client_id, "u": user or ""}
        for placeholder in _PLACEHOLDER.finditer(template):
            if placeholder[1] == "%":
                continue
            name = names[placeholder[1]]
            if not name or any(char in name for char in forbidden):
                return None
            if self.allows and placeholder.start() == 0 and name.startswith("$"):
                return None
        return tuple(_PLACEHOLDER.sub(lambda placeholder: names.get(placeholder[1], "%"), template).split("/"))


class Acl:
    """Machine, but for its memory a value. All rules of one reading of the file.

    What a client's rules come to is worked out once and kept for VIEWS_MAX clients.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._views: dict[tuple[str | None, str, str], tuple[_Decisions, _Decisions]] = {}

    def may_publish(self, user: str | None, client_id: str, topic: str, namespace: str = _ROOT) -> bool:
        """topic: a topic name, without wildcards."""
        forms = _forms(topic, namespace)
        for allows, rule, about in self._view(user, client_id, namespace)[0]:
            if _enters(rule, topic) if about == _ENTER else any(levels_cover(rule, levels) for levels in forms[about]):
                return allows
        return False

    def may_subscribe(self, user: str | None, client_id: str, filter_: str, namespace: str = _ROOT) -> bool:
        """filter_: a valid topic filter, also behind `$share/group/`."""
        listened = shared_filter(filter_)
        if listened is None:
            return False
        forms = _forms(listened, namespace)
        for allows, rule, about in self._view(user, client_id, namespace)[1]:
            decides = levels_cover if allows else levels_overlap
            if _enters(rule, listened) if about == _ENTER else any(decides(rule, levels) for levels in forms[about]):
                return allows
        return False

    def _rules_of(self, user: str | None) -> Iterable[Rule]:
        """Those that may fit this user, in order."""
        return self.rules

    def _view(self, user: str | None, client_id: str, namespace: str) -> tuple[_Decisions, _Decisions]:
        """(publish, subscribe): what the rules come to for this client."""
        view = self._views.get((user, client_id, namespace))
        if view is None:
            view = ([], [])
            for rule in self._rules_of(user):
                if not rule.fits(user, client_id):
                    continue
                for decision in _decisions(rule, user, client_id, namespace):
                    if rule.verb != "subscribe":
                        view[0].append(decision)
                    if rule.verb != "publish":
                        view[1].append(decision)
            if len(self._views) >= VIEWS_MAX:
                self._views.clear()
            self._views[user, client_id, namespace] = view
        return view


class AclByUser(Acl):
    """An access list by user: it need not look at the rules of all others. For a client with a name decides first what
    EVERYBODY is denied, then what its own rules say, then what EVERYBODY is allowed; for others, what ANONYMOUS says.

    rules: by name. None: they are not known, so everything is denied; of EVERYBODY to all with a name.
    """

    def __init__(self, rules: Mapping[str, Sequence[Rule] | None]) -> None:
        super().__init__(())
        self._by_user = rules

    def _rules_of(self, user: str | None) -> Iterable[Rule]:
        if user is None:
            return self._by_user.get(ANONYMOUS, ()) or ()
        all_users, own = self._by_user.get(EVERYBODY, ()), self._by_user.get(user, ())
        if all_users is None or own is None or user == EVERYBODY:
            return ()
        return (*(rule for rule in all_users if not rule.allows), *own, *(rule for rule in all_users if rule.allows))


def topic_problem(template: str) -> str:
    """Why this is no filter of a rule; "" if it is one."""
    if "%" in re.sub(r"%[%cu]", "", template):
        return "after % only c (client identifier), u (user name) or another % may stand"
    if template == "$share" or template.startswith("$share/"):
        return "a rule names the filter alone; it holds for shared subscriptions to it as well"
    return filter_problem(template.replace("%%", "%"))


def _decisions(rule: Rule, user: str | None, client_id: str, namespace: str) -> Iterable[_Decision]:
    """What a rule comes to for a client in a namespace."""
    if namespace == _ROOT and rule.namespaces and (rule.allows or "#" in rule.topics):
        yield rule.allows, rule.namespaces, _ENTER
    if not rule.namespaces or namespace in rule.namespaces or _ANY in rule.namespaces:
        about = _INSIDE if rule.namespaces or namespace == _ROOT else _OUTSIDE
        for levels in rule.filters(user, client_id):
            yield rule.allows, levels, about


def _forms(topic: str, namespace: str) -> tuple[list[list[str]], list[list[str]]]:
    """The levels of a topic or filter by which a decision knows it: _INSIDE, _OUTSIDE."""
    if namespace == _ROOT:
        return [topic.split("/")], []
    host = virtual_host_topic(namespace)
    outside = [f"{host}/{topic}".split("/")]
    if not topic.startswith("$"):
        outside.append(f"{host}/$exchange/amq.topic/{topic}".split("/"))
    return [topic.split("/")], outside


def _enters(namespaces: tuple[str, ...], topic: str) -> bool:
    """Whether a topic of "/" stands for entering one of these."""
    name = entered(topic)
    return name is not None and (name in namespaces or _ANY in namespaces)


def _glob_matches(glob: str, text: str) -> bool:
    """`*` any characters, `?` one; nothing else is special. Never more steps than the product of the lengths."""
    at_glob = at_text = 0
    star, resume = -1, 0
    while at_text < len(text):
        char = glob[at_glob] if at_glob < len(glob) else ""
        if char == "*":
            star, resume = at_glob, at_text
            at_glob += 1
        elif char and char in ("?", text[at_text]):
            at_glob += 1
            at_text += 1
        elif star >= 0:
            resume += 1
            at_glob, at_text = star + 1, resume
        else:
            return False
    return glob[at_glob:].strip("*") == ""
