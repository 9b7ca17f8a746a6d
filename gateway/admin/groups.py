"""Consumer groups as the brokers of a cluster know them: listing, describing with members and lag, deleting.

A description also names the topics on which members of a group disagree. A broker stores one subscription per group and
topic, that of the latest heartbeat. Members that disagree overwrite each other's, and messages that only some of them
want are skipped without a trace.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from codec.constants import ResponseCode, version_name
from codec.topics import RETRY_PREFIX, TOOL_GROUPS, dlq_topic, is_system_group, retry_topic
from gateway.admin.errors import AdminError, NotFound, Refused
from gateway.admin.topics import delete_topic
from remoting.bodies.groups import ConnectedClient, ConsumerConnection, SubscriptionGroupConfig
from remoting.bodies.heartbeat import SubscriptionData
from remoting.bodies.progress import ConsumeStats
from remoting.bodies.queues import MessageQueue
from remoting.bodies.running import ConsumerRunningInfo
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.client import GetConsumerConnectionList, GetConsumerRunningInfo
from remoting.requests.groups import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroupConfig,
    UpdateAndCreateSubscriptionGroup,
)
from remoting.requests.namesrv import GetAllTopicListFromNameserver
from remoting.requests.offsets import GetConsumeStats
from remoting.requests.topics import GetTopicStatsInfo
from toolkit.suggestions import suggest_name

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

MAX_ASKED_MEMBERS: Final = 200
"""Maximum number of members of one group that are asked for their state, each through its broker."""
MEMBER_TIMEOUT_S: Final = 3.0
_ASKING_THREADS: Final = 16
_MEMBER_ERRORS: Final = (AdminError, RemotingClosed, RemotingTimeout, RequestError)
_NO_GROUP_CODES: Final = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


def group_names(client: "AdminClient", *, all_kinds: bool = False) -> dict[str, list[str]]:
    """Return the brokers that know each group; those of the system and its tools only with ``all_kinds``.

    A group that a broker created by itself, for a consumer of 4.9, may only be known by the name of its retry topic.
    """
    brokers = list(client.masters)

    def read(broker: str) -> list[str]:
        return list(client.ask_broker(broker, GetAllSubscriptionGroupConfig()).data.subscription_group_table)

    brokers_by_group: dict[str, list[str]] = {}
    for broker, names in zip(brokers, client.map_brokers(brokers, read), strict=True):
        for name in names:
            brokers_by_group.setdefault(name, []).append(broker)
    for topic in client.ask_namesrv(GetAllTopicListFromNameserver()).data.topic_list:
        if topic.startswith(RETRY_PREFIX):
            brokers_by_group.setdefault(topic.removeprefix(RETRY_PREFIX), [])
    return {
        name: brokers_by_group[name]
        for name in sorted(brokers_by_group)
        if all_kinds or not is_internal_group(name)
    }


def is_internal_group(name: str) -> bool:
    """Return True for a group of the system, of its tools, or of a stock client's own threads."""
    return is_system_group(name) or name in TOOL_GROUPS or name == "SELF_TEST_C_GROUP"


def list_groups(
    client: "AdminClient", pattern: str = "*", *, all_kinds: bool = False
) -> list[dict[str, Any]]:
    """Return a row for each group whose name matches: members, topics, lag, dead letters."""
    names = [name for name in group_names(client, all_kinds=all_kinds) if fnmatchcase(name, pattern)]
    rows: dict[str, dict[str, Any]] = {
        name: {
            "group": name,
            "members": set(),
            "model": None,
            "topics": set(),
            "lag": 0,
            "consumedPerSecond": 0.0,
            "deadLetters": 0,
            "brokers": [],
        }
        for name in names
    }
    brokers = list(client.masters)

    # Three pipelined batches for each broker, instead of a round trip for each group.
    def read(broker: str) -> tuple[list[Any], list[Any], list[Any]]:
        address = client.master(broker)
        return (
            client.ask_many(address, [GetConsumerConnectionList(consumer_group=name) for name in names]),
            client.ask_many(address, [GetConsumeStats(consumer_group=name) for name in names]),
            client.ask_many(address, [GetTopicStatsInfo(topic=dlq_topic(name)) for name in names]),
        )

    for broker, answers in zip(brokers, client.map_brokers(brokers, read), strict=True):
        for name, members, stats, dead in zip(names, *answers, strict=True):
            # A refusal means that the broker has none: no member, no offset, or no dead letter of the group.
            row = rows[name]
            if not isinstance(members, Refused):
                row["members"] |= {member.client_id for member in members.data.connection_set}
                row["model"] = members.data.message_model
            if not isinstance(stats, Refused):
                table = stats.data.offset_table
                row["topics"] |= {queue.topic for queue in table} - {retry_topic(name)}
                row["lag"] += sum(lag_of(offsets) for offsets in table.values())
                row["consumedPerSecond"] += stats.data.consume_tps
                row["brokers"] += [broker] if table else []
            if not isinstance(dead, Refused):
                row["deadLetters"] += sum(
                    offsets.max_offset - offsets.min_offset for offsets in dead.data.offset_table.values()
                )
    _add_untouched_lag(client, rows)
    for row in rows.values():
        row["members"], row["topics"] = len(row["members"]), sorted(row["topics"])
    return list(rows.values())


def _add_untouched_lag(client: "AdminClient", rows: Mapping[str, dict[str, Any]]) -> None:
    """Add the lag on brokers where a group has no offset: they count it only for a topic that is named."""

    def read(broker: str) -> list[tuple[str, int]]:
        pairs = [
            (name, topic)
            for name, row in rows.items()
            if broker not in row["brokers"]
            for topic in row["topics"]
        ]
        requests = [GetConsumeStats(consumer_group=name, topic=topic) for name, topic in pairs]
        answers = client.ask_many(client.master(broker), requests) if requests else []
        return [
            (name, sum(lag_of(offsets) for offsets in stats.data.offset_table.values()))
            for (name, _), stats in zip(pairs, answers, strict=True)
            if not isinstance(stats, Refused)
        ]

    for lags in client.map_brokers(list(client.masters), read):
        for name, lag in lags:
            rows[name]["lag"] += lag


def lag_of(offsets: Any) -> int:
    """Return the number of messages of one queue that a group has not committed."""
    return int(max(0, offsets.broker_offset - max(0, offsets.consumer_offset)))


# -- one group ----------------------------------------------------------------------------------------------------


def describe_group(client: "AdminClient", group: str) -> dict[str, Any]:
    """Return members, subscriptions, lag by queue and inconsistencies of one group. Raises NotFound."""
    # Members and offsets are the brokers' own: a group may have members at one broker and offsets at another.
    brokers = list(client.masters)
    connections = dict(
        zip(
            brokers,
            client.map_brokers(brokers, lambda broker: read_members(client, broker, group)),
            strict=True,
        )
    )
    progress = read_whole_progress(client, group)
    broker_connections = [connection for connection in connections.values() if connection is not None]
    # A group without members and offsets may still exist, and a misspelt name looks the same until here.
    if not broker_connections and not any(stats.offset_table for stats in progress.values()):
        check_group_exists(client, group)
    # A member is connected to every broker of its topics, and counts once.
    members = {
        member.client_id or "": member
        for connection in broker_connections
        for member in connection.connection_set
    }
    # Only the members themselves know which queues they hold, and what each of them subscribes to: a broker stores one
    # subscription per topic, that of the latest heartbeat.
    states = _ask_members(client, group, connections)
    owners = {
        _queue_key(queue): client_id
        for client_id, state in states.items()
        for queue in (*state.mq_table, *state.mq_pop_table)
    }
    # In order of topic, broker and queue, so that two runs can be compared line by line.
    queues = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "consumerOffset": offsets.consumer_offset,
            "maxOffset": offsets.broker_offset,
            "lag": lag_of(offsets),
            # Pulled, and not committed yet. After a seek forward the pull offset lies before the committed one.
            "inFlight": max(0, offsets.pull_offset - offsets.consumer_offset),
            "lastConsumedMs": offsets.last_timestamp or None,
            "client": owners.get(_queue_key(queue)),
        }
        for stats in progress.values()
        for queue, offsets in sorted(stats.offset_table.items(), key=lambda item: _queue_key(item[0]))
    ]
    subscriptions = {
        topic: subscription
        for connection in broker_connections
        for topic, subscription in connection.subscription_table.items()
    }
    # All members have one way of consuming: brokers give that of the latest heartbeat. Any broker's answer will do.
    first = broker_connections[0] if broker_connections else ConsumerConnection()
    return {
        "group": group,
        "state": "online" if members else "offline",
        "consumeType": first.consume_type,
        "messageModel": first.message_model,
        "consumeFrom": first.consume_from_where,
        "lag": sum(queue["lag"] for queue in queues),
        "inFlight": sum(queue["inFlight"] for queue in queues),
        "consumedPerSecond": sum(stats.consume_tps for stats in progress.values()),
        "deadLetters": _count_dead_letters(client, group),
        "members": [_member_row(member, states.get(name)) for name, member in sorted(members.items())],
        "subscriptions": [
            {"topic": topic, "expression": subscription.expression_text, "version": subscription.sub_version}
            for topic, subscription in sorted(subscriptions.items())
        ],
        "inconsistentSubscriptions": find_inconsistencies(
            {name: state.subscription_set for name, state in states.items()}
        ),
        "queues": queues,
    }


def _queue_key(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


def _member_row(member: ConnectedClient, state: ConsumerRunningInfo | None) -> dict[str, Any]:
    subscriptions: list[SubscriptionData] = list(state.subscription_set) if state is not None else []
    return {
        "client": member.client_id,
        "address": member.client_addr,
        "protocol": member.protocol,
        "language": member.language,
        "version": version_name(member.version),
        "answers": state is not None,
        "queues": len(state.mq_table) + len(state.mq_pop_table) if state is not None else None,
        "subscriptions": {
            subscription.topic: subscription.expression_text
            for subscription in subscriptions
            if not subscription.topic.startswith(RETRY_PREFIX)
        }
        if state is not None
        else None,
    }


def read_members(client: "AdminClient", broker: str, group: str) -> ConsumerConnection | None:
    """Return the members of a group that are connected to a broker; None if there are none."""
    try:
        return client.ask_broker(broker, GetConsumerConnectionList(consumer_group=group)).data
    except Refused as refused:
        if refused.code not in _NO_GROUP_CODES:
            raise
        return None


def online_members(client: "AdminClient", group: str) -> list[str]:
    """Return the client ids of a group's members."""
    client_ids = {
        member.client_id or ""
        for broker in client.masters
        if (members := read_members(client, broker, group)) is not None
        for member in members.connection_set
    }
    return sorted(client_ids)


def read_progress(client: "AdminClient", broker: str, group: str, topic: str | None = None) -> ConsumeStats:
    """Return the offsets of a group on one broker, empty if it has none there."""
    try:
        return client.ask_broker(broker, GetConsumeStats(consumer_group=group, topic=topic)).data
    except Refused as refused:
        if refused.code not in (*_NO_GROUP_CODES, ResponseCode.TOPIC_NOT_EXIST):
            raise
        return ConsumeStats()


def read_whole_progress(client: "AdminClient", group: str) -> dict[str, ConsumeStats]:
    """Return the offsets of a group by broker.

    A broker where the group has no offset of a topic leaves that topic out unless the request names it. So the topics
    that the group consumes from one broker are named in requests to the others.
    """
    brokers = list(client.masters)
    answers = client.map_brokers(brokers, lambda broker: read_progress(client, broker, group))
    parts = dict(zip(brokers, answers, strict=True))
    topics = {queue.topic for part in answers for queue in part.offset_table} - {retry_topic(group)}
    for broker, part in parts.items():
        # The brokers answered with the topics they have offsets of, so the rest is what some broker left out.
        for topic in sorted(topics - {queue.topic for queue in part.offset_table}):
            part.offset_table |= read_progress(client, broker, group, topic).offset_table
    return parts


def _ask_members(
    client: "AdminClient", group: str, connections: dict[str, ConsumerConnection | None]
) -> dict[str, ConsumerRunningInfo]:
    """Return the state of each member that answers, by client id; clients of some languages never do."""
    broker_by_member: dict[str, str] = {}
    for broker, members in connections.items():
        for member in members.connection_set if members is not None else ():
            broker_by_member.setdefault(member.client_id or "", broker)

    def ask(item: tuple[str, str]) -> ConsumerRunningInfo | None:
        client_id, broker = item
        request = GetConsumerRunningInfo(consumer_group=group, client_id=client_id)
        try:
            # On a connection of its own: the broker answers when the client has, or not at all.
            with client.dial(client.master(broker)) as connection:
                return request.read_reply(
                    connection.send_command(
                        request.to_command(), timeout_s=min(client.timeout_s, MEMBER_TIMEOUT_S)
                    )
                ).data
        except _MEMBER_ERRORS:
            return None

    # Each takes up to MEMBER_TIMEOUT_S: without a bound a group of thousands would take minutes.
    chosen = list(broker_by_member.items())[:MAX_ASKED_MEMBERS]
    if not chosen:
        return {}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(chosen), _ASKING_THREADS)) as threads:
        states = list(threads.map(ask, chosen))
    return {name: state for (name, _), state in zip(chosen, states, strict=True) if state is not None}


def _count_dead_letters(client: "AdminClient", group: str) -> int:
    count = 0
    for broker in client.masters:
        try:
            table = client.ask_broker(broker, GetTopicStatsInfo(topic=dlq_topic(group))).data.offset_table
        except Refused:
            continue  # no message has become a dead letter there
        count += sum(offsets.max_offset - offsets.min_offset for offsets in table.values())
    return count


def check_group_exists(client: "AdminClient", group: str) -> None:
    """Raise NotFound, with a suggestion, for a group that no broker knows."""
    groups = group_names(client, all_kinds=True)
    if group not in groups:
        suggestion = suggest_name(group, groups, list_all=False)
        raise NotFound(
            f'group "{group}" does not exist{suggestion}'
            + ("" if suggestion else '. See the names with "rmq-gateway group list".')
        )


def read_group(client: "AdminClient", broker: str, group: str) -> SubscriptionGroupConfig | None:
    """Return a group's settings on one broker; None if it does not have the group.

    A broker may create a group that it is asked for by its name (`autoCreateSubscriptionGroup`), so all are read.
    """
    return client.ask_broker(broker, GetAllSubscriptionGroupConfig()).data.subscription_group_table.get(group)


def create_group(client: "AdminClient", config: SubscriptionGroupConfig, brokers: Sequence[str]) -> None:
    """Create a group on some brokers. Raises AdminError if one of them has it."""
    group = config.group_name
    present = client.map_brokers(brokers, lambda broker: read_group(client, broker, group))
    owners = [broker for broker, found in zip(brokers, present, strict=True) if found is not None]
    if owners:
        raise AdminError(
            f'group "{group}" exists on {", ".join(owners)}; change it with "rmq-gateway group alter".'
        )
    request = UpdateAndCreateSubscriptionGroup(data=config)
    client.map_brokers(brokers, lambda broker: client.ask_broker(broker, request))


def alter_group(
    client: "AdminClient", group: str, brokers: Sequence[str], changes: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Change settings of a group where it exists; return a row for each change. Raises NotFound."""
    configs = client.map_brokers(brokers, lambda broker: read_group(client, broker, group))
    present = {broker: config for broker, config in zip(brokers, configs, strict=True) if config is not None}
    if not present:
        check_group_exists(client, group)
        raise NotFound(f'group "{group}" is on none of the brokers {", ".join(brokers)}')
    rows = []
    for broker, config in present.items():
        changed = {name: value for name, value in changes.items() if getattr(config, name) != value}
        rows += [
            {"broker": broker, "setting": name, "before": getattr(config, name), "now": value}
            for name, value in changed.items()
        ]
        for name, value in changed.items():
            setattr(config, name, value)
        if changed:
            client.ask_broker(broker, UpdateAndCreateSubscriptionGroup(data=config))
    return rows


def delete_group(
    client: "AdminClient", group: str, brokers: Sequence[str], *, dead_letters: bool, force: bool
) -> list[str]:
    """Delete a group with its offsets and its retry topic, and its dead letters on demand; return the topics deleted.

    Raises AdminError while it has members, unless ``force``: a member's next heartbeat creates the group again.
    """
    check_group_exists(client, group)
    online = online_members(client, group)
    if online and not force:
        raise AdminError(
            f'group "{group}" has members ({", ".join(online[:3])}). Stop them first, '
            "or pass --force; brokers that create groups by themselves will create it again."
        )
    request = DeleteSubscriptionGroup(group_name=group, clean_offset=True)
    client.map_brokers(brokers, lambda broker: client.ask_broker(broker, request))
    return _delete_topics(
        client, [retry_topic(group), *([dlq_topic(group)] if dead_letters else [])], brokers
    )


def _delete_topics(client: "AdminClient", topics: Iterable[str], brokers: Sequence[str]) -> list[str]:
    deleted = []
    for topic in topics:
        try:
            delete_topic(client, topic, brokers)
        except NotFound:
            continue
        deleted.append(topic)
    return deleted


# -- members that subscribe to different messages -----------------------------------------------------------------

NOT_SUBSCRIBED: Final = "not subscribed"


def find_inconsistencies(members: Mapping[str, Iterable[SubscriptionData]]) -> list[dict[str, Any]]:
    """Return the topics on which members disagree: each with its subscriptions and the clients that have it.

    ``members`` are the subscriptions by client id. Retry topics are left out: clients subscribe to them by themselves.
    """
    by_client = {
        client: {
            subscription.topic: subscription
            for subscription in subscriptions
            if not subscription.topic.startswith(RETRY_PREFIX)
        }
        for client, subscriptions in sorted(members.items())
    }
    inconsistencies = []
    for topic in sorted({topic for by_topic in by_client.values() for topic in by_topic}):
        variants: dict[Any, dict[str, Any]] = {}
        for client, by_topic in by_client.items():
            # Compared by what is selected, not by its text: "a||b" and "b || a" are the same.
            subscription = by_topic.get(topic)
            key = subscription.selection if subscription is not None else None
            text = subscription.expression_text if subscription is not None else NOT_SUBSCRIBED
            variants.setdefault(key, {"subscription": text, "clients": []})["clients"].append(client)
        if len(variants) > 1:
            inconsistencies.append({"topic": topic, "subscriptions": list(variants.values())})
    return inconsistencies


def describe_inconsistency(inconsistency: Mapping[str, Any]) -> str:
    """Return one sentence that names the topic, and for each subscription a client that has it."""
    parts = []
    for variant in inconsistency["subscriptions"]:
        clients, text = variant["clients"], variant["subscription"]
        more = f" and {len(clients) - 1} more" if len(clients) > 1 else ""
        shown = text if text == NOT_SUBSCRIBED else f'"{text}"'
        parts.append(f"{clients[0]}{more}: {shown}")
    return f"{inconsistency['topic']}: {'; '.join(parts)}"
