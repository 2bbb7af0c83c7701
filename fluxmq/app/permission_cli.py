"""`fluxmq permission …`: permissions of a cluster, over the admin socket of any of its nodes (admin/accounts.py)."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fluxmq._core.errors import ConfigError
from fluxmq.app.config_options import FILE
from fluxmq.app.queue_place import Place, asks, confirm, yes_option
from fluxmq.app.queue_text import as_table, plain

__all__ = ["permission"]

_COLUMNS = {"namespace": "NAMESPACE", "user": "USER", "rule": "RULE", "topics": "TOPICS", "client": "CLIENTS"}
_VERBS = click.Choice(["publish", "subscribe", "all"])
_namespace = click.option("--namespace", default="/", metavar="NAME", show_default=True,
                          help="The namespace that it is about; \"*\": all of them.")


@click.group()
def permission() -> None:
    """Manage permissions of a cluster (auth.cluster_permissions).

    USER is the name of a user, or "*" for every user, or "#anonymous" for clients without a name.
    """


def _show(place: Place, answer: dict[str, Any], text: str) -> None:
    place.show(answer, lambda: text)
    if answer["behind"]:
        click.echo(f"not every node may know it yet: {plain(answer['behind'])}", err=True)
    if not answer["used"]:
        click.echo("this node does not use the permissions of its cluster: set auth.cluster_permissions instead of "
                   "acl_file", err=True)


@permission.command("list")
@asks
def permission_list(place: Place) -> None:
    """List the rules of all users, in the order in which they decide."""
    answer = place.client.ask("GET", "permissions")
    rows = [{"namespace": one["namespace"], "user": one["user"]} | row for one in answer["permissions"]
            for row in _rows(one["rules"])]
    place.show(answer, lambda: as_table(rows, _COLUMNS) if rows else "nobody has permissions")


def _rows(rules: list[dict[str, Any]] | None) -> list[dict[str, str]]:
    if not rules:
        return [{"rule": "deny all" if rules is not None else "deny all (unreadable)", "topics": "", "client": ""}]
    return [{"rule": f"allow {rule['allow']}" if "allow" in rule else f"deny {rule['deny']}",
             "topics": " ".join(rule["topics"]), "client": " ".join(rule.get("client", ()))} for rule in rules]


@permission.command("set")
@click.argument("user")
@_namespace
@click.option("--deny", type=(_VERBS, str), multiple=True, metavar="VERB FILTER", help=(
    "publish, subscribe or all, and a topic filter, with %c and %u. Repeatable; denials are looked at first."))
@click.option("--allow", type=(_VERBS, str), multiple=True, metavar="VERB FILTER", help="The same. Repeatable.")
@click.option("--rules", "rules_file", type=FILE, metavar="FILE", help=(
    "Instead of both: rules in their order, an access list without `user`, `anonymous` and `namespace`."))
@asks
def permission_set(place: Place, user: str, namespace: str, deny: tuple[tuple[str, str], ...],
                   allow: tuple[tuple[str, str], ...], rules_file: Path | None) -> None:
    """Set what USER may do, instead of what it may do in that namespace so far. Without rules: nothing."""
    if rules_file is not None and (deny or allow):
        raise click.UsageError("give either --rules, or --deny and --allow")
    rules = _from_file(rules_file) if rules_file is not None else [
        *({"deny": verb, "topics": [topic]} for verb, topic in deny),
        *({"allow": verb, "topics": [topic]} for verb, topic in allow)]
    answer = place.client.ask("PUT", "permissions", user, query={"namespace": namespace}, body={"rules": rules})
    _show(place, answer, f"{plain(user)} has {len(rules)} rules in {plain(namespace)}")


def _from_file(file: Path) -> list[dict[str, Any]]:
    from fluxmq.access.acl_file import load_acl

    rules = []
    for rule in load_acl(file).rules:
        if rule.users or rule.anonymous or rule.namespaces:
            raise ConfigError(str(file), "the rules are those of one user in one namespace: leave out `user`, "
                              "`anonymous` and `namespace`")
        rules.append({"allow" if rule.allows else "deny": rule.verb, "topics": rule.topics, "client": rule.clients})
    return rules


@permission.command("remove")
@click.argument("user")
@_namespace
@yes_option
@asks
def permission_remove(place: Place, user: str, namespace: str, yes: bool) -> None:
    """Remove the rules of USER. What those of "*" do not allow is denied then."""
    confirm(yes, f"Remove all rules of {plain(user)} in {plain(namespace)}?")
    answer = place.client.ask("DELETE", "permissions", user, query={"namespace": namespace})
    _show(place, answer, f"{plain(user)} has no rules in {plain(namespace)} any more")
