"""Access policies of one user, and the decision about a request.

A user has at most one policy of each type. The CUSTOM policy decides, and the DEFAULT policy only if no entry of the
custom one matches. Among the entries that match resource, action and source address, the most specific one decides: a
literal name before the longest prefix, before all names, before all resources. If no entry matches, the request is
denied.
Source: AclAuthorizationHandler and Acl, 5.4.0. Deviation: of two equally specific entries the one that denies wins, as
the official comment promises and its comparison does not.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from gateway.auth.resources import (
    Action,
    Resource,
    ResourcePattern,
    ResourceType,
    find_named,
    parse_resource,
)
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo

RequestKey = tuple[int, str, str, str]
"""Key of a remembered decision: code, topic and group of the request, and the sender's address."""
MAX_REMEMBERED: Final = 1_000
"""Allowed requests of one user that are remembered."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class InvalidPolicy(ValueError):
    """Policies that cannot be stored; the text is the official one."""


class PolicyType(Enum):
    """A layer of policies: CUSTOM decides before DEFAULT."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One rule. Without ``source_ips`` (addresses or CIDR ranges) it applies to every address."""

    resource: Resource
    actions: frozenset[Action]
    source_ips: tuple[str, ...]
    is_allow: bool

    def matches(self, actions: Iterable[Action], source_ip: str) -> bool:
        """Return True if the entry is about one of the actions, and about this address."""
        if Action.ALL not in self.actions and self.actions.isdisjoint(actions):
            return False
        return not self.source_ips or any(is_in_range(source_ip, source) for source in self.source_ips)

    def __str__(self) -> str:
        actions = ",".join(sorted(action.value for action in self.actions))
        sources = f" from {','.join(self.source_ips)}" if self.source_ips else ""
        return f"{'Allow' if self.is_allow else 'Deny'} {actions} on {self.resource}{sources}"


@lru_cache(maxsize=4096)
def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return None


def is_in_range(address: str, range_text: str) -> bool:
    """Return True if an address lies in a range such as 10.0.0.0/8; a single address is a range of one."""
    network, host = _network(range_text), _network(address)
    return network is not None and host is not None and host.version == network.version and host[0] in network


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one need. ``entry`` is the rule that decided, None if no rule matched."""

    is_allowed: bool
    entry: PolicyEntry | None = None
    policy_type: PolicyType | None = None


class Policies:
    """The policies of one user, arranged so that a decision reads few entries. The entries never change.

    ``allowed`` is a cache: the keys of requests that were allowed, as recorded by `remember`.
    """

    def __init__(self, entries: dict[PolicyType, tuple[PolicyEntry, ...]]) -> None:
        self.allowed: set[RequestKey] = set()
        self.entries = {kind: entries[kind] for kind in PolicyType if entries.get(kind)}
        self._indexes = [(kind, _EntryIndex(kind_entries)) for kind, kind_entries in self.entries.items()]

    def decide(self, resource: Resource, actions: Sequence[Action], source_ip: str) -> Decision:
        """Decide whether one of the actions is allowed on a single resource."""
        for kind, index in self._indexes:
            entry = index.find(resource, actions, source_ip)
            if entry is not None:
                return Decision(entry.is_allow, entry, kind)
        return Decision(is_allowed=False)

    def allows_somewhere(self, actions: Sequence[Action], source_ip: str) -> bool:
        """Return True if an entry allows one of the actions on any topic or group."""
        return any(
            entry.is_allow
            and entry.resource.type is not ResourceType.CLUSTER
            and entry.matches(actions, source_ip)
            for entries in self.entries.values()
            for entry in entries
        )

    def remember(self, key: RequestKey) -> None:
        """Record that a request was allowed; at the limit, all earlier ones are forgotten."""
        if len(self.allowed) >= MAX_REMEMBERED:
            self.allowed.clear()
        self.allowed.add(key)

    def with_entries(self, kind: PolicyType, changes: Iterable[PolicyEntry]) -> "Policies":
        """Return policies with entries added, or replaced where there is one for the same resource."""
        by_resource = {entry.resource: entry for entry in self.entries.get(kind, ())}
        by_resource |= {entry.resource: entry for entry in changes}
        return Policies({**self.entries, kind: tuple(by_resource.values())})

    def without_entry(self, kind: PolicyType, resource: Resource) -> "Policies":
        """Return policies without the entry for a resource."""
        remaining = tuple(entry for entry in self.entries.get(kind, ()) if entry.resource != resource)
        return Policies({**self.entries, kind: remaining})


class _EntryIndex:
    """The entries of one policy by kind and name."""

    def __init__(self, entries: Iterable[PolicyEntry]) -> None:
        self._literal: dict[tuple[ResourceType, str], list[PolicyEntry]] = {}
        self._prefixed: dict[ResourceType, dict[str, list[PolicyEntry]]] = {}
        self._all_of_type: dict[ResourceType, list[PolicyEntry]] = {}
        for entry in entries:
            kind, name = entry.resource.type, entry.resource.name
            if kind is not ResourceType.ANY and entry.resource.pattern is ResourcePattern.LITERAL:
                self._literal.setdefault((kind, name), []).append(entry)
            elif kind is not ResourceType.ANY and entry.resource.pattern is ResourcePattern.PREFIXED:
                self._prefixed.setdefault(kind, {}).setdefault(name, []).append(entry)
            else:
                self._all_of_type.setdefault(kind, []).append(entry)
        self._prefix_lengths = {
            kind: sorted({len(prefix) for prefix in prefixes}, reverse=True)
            for kind, prefixes in self._prefixed.items()
        }

    def find(self, resource: Resource, actions: Sequence[Action], source_ip: str) -> PolicyEntry | None:
        """Return the most specific entry that matches; among equally specific ones, one that denies."""
        for candidates in self._by_specificity(resource):
            matching = [entry for entry in candidates if entry.matches(actions, source_ip)]
            if matching:
                return next((entry for entry in matching if not entry.is_allow), matching[0])
        return None

    def _by_specificity(self, resource: Resource) -> Iterable[list[PolicyEntry]]:
        kind, name = resource.type, resource.name
        yield self._literal.get((kind, name), [])
        prefixes = self._prefixed.get(kind, {})
        for length in self._prefix_lengths.get(kind, ()):
            yield prefixes.get(name[:length], []) if length <= len(name) else []
        yield self._all_of_type.get(kind, [])
        yield self._all_of_type.get(ResourceType.ANY, [])


NO_POLICIES = Policies({})


# -- the form in which the admin tools exchange policies ----------------------------------------------------------


def parse_policies(info: AclInfo) -> list[tuple[PolicyType, list[PolicyEntry]]]:
    """Return the entries of the policies of a request; policies without entries are left out. Raises InvalidPolicy.

    Source: AclConverter.convertAcl and AuthorizationMetadataManagerImpl.validate, 5.4.0.
    """
    policies = [policy for policy in info.policies if policy.entries]
    if not policies:
        raise InvalidPolicy("The policies is empty.")
    return [
        (parse_policy_type(policy.policy_type), [parse_entry(entry) for entry in policy.entries])
        for policy in policies
    ]


def parse_policy_type(name: str | None) -> PolicyType:
    """Return the type of this name, in any case; CUSTOM for an unknown or missing name, as the official server does."""
    return find_named(PolicyType, name) or PolicyType.CUSTOM


def parse_entry(info: PolicyEntryInfo) -> PolicyEntry:
    """Return one rule. Raises InvalidPolicy."""
    resource = parse_resource(info.resource)
    if resource is None:
        raise InvalidPolicy("The resource is null.")
    if any(name.lower() == "any" for name in info.actions):
        raise InvalidPolicy("The actions can not be Any.")
    named_actions = (find_named(Action, name) for name in info.actions)
    actions = frozenset(action for action in named_actions if action is not None)
    if not actions:
        raise InvalidPolicy("The actions is empty.")
    for source_ip in info.source_ips:
        if not source_ip.strip():
            raise InvalidPolicy("The source ip is empty.")
        if _network(source_ip) is None:
            raise InvalidPolicy("The source ip is invalid.")
    decision = (info.decision or "").lower()
    if decision not in ("allow", "deny"):
        raise InvalidPolicy("The decision is null or illegal.")
    return PolicyEntry(resource, actions, tuple(info.source_ips), decision == "allow")


def describe_policies(subject: str, policies: Policies, resource_filter: str = "") -> AclInfo:
    """Return policies as the admin tools show them, limited to entries whose resource contains a text."""
    shown = []
    for kind, entries in policies.entries.items():
        infos = [_describe_entry(entry) for entry in entries if resource_filter in str(entry.resource)]
        if infos:
            shown.append(PolicyInfo(policy_type=kind.value, entries=infos))
    return AclInfo(subject=subject, policies=shown)


def _describe_entry(entry: PolicyEntry) -> PolicyEntryInfo:
    return PolicyEntryInfo(
        resource=str(entry.resource),
        actions=[action.value for action in Action if action in entry.actions],
        source_ips=list(entry.source_ips),
        decision="Allow" if entry.is_allow else "Deny",
    )
