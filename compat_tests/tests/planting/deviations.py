"""Planted deviations of our server from the protocol, each with the case that must turn red."""

from dataclasses import dataclass
from typing import Final

from compat_tests.areas import AREAS
from storage.tests.planting.catalogue import Catalogue
from storage.tests.planting.defect import Defect, Edit

CASES: Final = "compat_tests/cases"
BROKER: Final = "gateway/broker"
SEND_HANDLER: Final = f"{BROKER}/requests/send_handler.py"
PULL_HANDLER: Final = f"{BROKER}/requests/pull_handler.py"
PROCESSORS: Final = f"{BROKER}/processors"
ACCESS: Final = "access"
"""Access control, whose cases start servers of their own and have no row in the table of the suite."""


def deviation(area: str, name: str, case: str, path: str, old: str, new: str) -> Defect:
    """Return a deviation of one edit, which a case ("test_send.py::test_reply") of an area must catch.

    A case outside of the suite is named with its folder ("acceptance/…").
    """
    return Defect(name, area, (Edit(path, old, new),), (case if "/" in case else f"{CASES}/{case}",))


@dataclass(frozen=True, slots=True)
class DeviationCatalogue(Catalogue):
    """A catalogue whose table has a row for each deviation, with the case that must turn red."""

    def render_table(self) -> str:
        """Return the table of the page, in the order of the areas."""
        lines = ["| area | planted deviation | case that must turn red |", "|---|---|---|"]
        for area in self.rules:
            for each in self.defects:
                if each.law == area:
                    (case,) = each.tests
                    lines.append(f"| {area} | `{each.name}` | `{case.removeprefix(f'{CASES}/')}` |")
        return "\n".join(lines) + "\n"


_DEVIATIONS: Final = (
    deviation(
        "send",
        "queue-behind-the-last-one-accepted",
        "test_send.py::test_queue_range",
        SEND_HANDLER,
        "if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:",
        "if queue_id > config.write_queue_nums and queue_id > config.read_queue_nums:",
    ),
    deviation(
        "batch",
        "batch-answered-with-one-id",
        "test_send.py::test_batch",
        SEND_HANDLER,
        "message_ids = view.message_ids(physical_offsets)",
        "message_ids = view.message_ids(physical_offsets[:1])",
    ),
    deviation(
        "bodies",
        "message-without-body-stored",
        "test_bodies.py::test_none",
        SEND_HANDLER,
        "        if not command.body:  # A frame cannot",
        "        if False:  # A frame cannot",
    ),
    deviation(
        "pull",
        "beyond-an-empty-queue-is-not-moved",
        "test_pull.py::test_empty_queue_beyond",
        PULL_HANDLER,
        "code = ResponseCode.PULL_OFFSET_MOVED if offset else NOT_FOUND",
        "code = NOT_FOUND",
    ),
    deviation(
        "pull",
        "pull-waits-without-the-suspend-flag",
        "test_pull.py::test_no_suspend_flag",
        PULL_HANDLER,
        "may_wait and pull.sys_flag & SUSPEND and self._may_hold",
        "may_wait and self._may_hold",
    ),
    deviation(
        "pull",
        "newer-subscription-version-accepted",
        "test_pull.py::test_newer_subscription",
        PULL_HANDLER,
        "if subscription.sub_version < version:",
        "if False:",
    ),
    deviation(
        "pop",
        "pop-does-not-move-the-consumer-offset",
        "test_pop.py::test_groups",
        f"{BROKER}/pop/pop_handler.py",
        "return False\n            self._offsets.commit_offset(group, topic, queue_id, result.next_offset)\n",
        "return False\n",
    ),
    deviation(
        "pop",
        "ack-forgotten",
        "test_pop_acks.py::test_ack",
        f"{BROKER}/pop/ack_handler.py",
        "        key = _pop_key(topic, group, queue_id, receipt)\n",
        "        return\n",
    ),
    deviation(
        "offsets",
        "upper-boundary-of-a-time-search-ignored",
        "test_offsets.py::test_search_upper",
        f"{PROCESSORS}/offsets.py",
        "boundary = Boundary.UPPER if upper else Boundary.LOWER",
        "boundary = Boundary.LOWER",
    ),
    deviation(
        "offsets",
        "new-group-starts-at-zero-unasked",
        "test_offsets.py::test_new_group_not_found",
        f"{PROCESSORS}/offsets.py",
        "if request.set_zero_if_not_found is False:",
        "if False:",
    ),
    deviation(
        "retry",
        "first-retry-at-level-1",
        "test_retry.py::test_levels",
        f"{BROKER}/requests/retry_rules.py",
        "FIRST_RETRY_LEVEL: Final = 3",
        "FIRST_RETRY_LEVEL: Final = 1",
    ),
    deviation(
        "retry",
        "one-retry-too-many",
        "test_retry.py::test_default_limit",
        f"{BROKER}/requests/retry_rules.py",
        "if message.reconsume_times >= limit or",
        "if message.reconsume_times > limit or",
    ),
    deviation(
        "transactions",
        "half-message-ended-by-any-group",
        "test_transactions.py::test_refusals",
        f"{BROKER}/transactions/end_transaction.py",
        'if find_property(half.properties, b"PGROUP") != group.encode():',
        "if False:",
    ),
    deviation(
        "transactions",
        "late-decision-accepted",
        "test_transactions.py::test_late",
        f"{BROKER}/transactions/end_transaction.py",
        "if self._clock.now_ms() - half.born_timestamp > immunity_ms:",
        "if False:",
    ),
    deviation(
        "delay",
        "delays-half-as-long",
        "test_send.py::test_delay",
        f"{BROKER}/delayed/delay_service.py",
        "self._delays = parse_levels(levels)",
        "self._delays = [delay // 2 for delay in parse_levels(levels)]",
    ),
    deviation(
        "timer",
        "recalled-message-delivered",
        "test_timer.py::test_recall",
        f"{BROKER}/delayed/timer_delivery.py",
        "elif not (slot.recalls and self._is_recalled(slot, stored)):",
        "else:",
    ),
    deviation(
        "filter",
        "tags-not-trimmed",
        "test_pull.py::test_tags",
        f"{BROKER}/filters/message_filter.py",
        '(part.strip() for part in expression.split("||"))',
        'expression.split("||")',
    ),
    deviation(
        "filter",
        "invalid-expression-accepted",
        "test_filters.py::test_refused",
        f"{PROCESSORS}/heartbeats.py",
        "        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error\n",
        "        return\n",
    ),
    deviation(
        "query",
        "time-range-of-a-query-ignored",
        "test_query.py::test_time",
        f"{PROCESSORS}/query.py",
        "        request.begin_timestamp,\n        request.end_timestamp,\n",
        "        0,\n        1 << 62,\n",
    ),
    deviation(
        "admin",
        "deleted-topic-keeps-its-messages",
        "test_topics.py::test_again",
        f"{PROCESSORS}/topics.py",
        "                    await _delete_messages(broker, name)\n",
        "                    pass\n",
    ),
    deviation(
        "admin",
        "system-topic-may-be-changed",
        "test_topics.py::test_system",
        f"{PROCESSORS}/topics.py",
        "    _refuse_system_topic(broker, config.topic_name)\n",
        "",
    ),
    deviation(
        "namesrv",
        "lost-broker-stays",
        "test_namesrv.py::test_lost",
        "gateway/namesrv/processors.py",
        "        call.connection.on_close(partial(remove_brokers_of, namesrv))\n",
        "",
    ),
    deviation(
        "namesrv",
        "write-permission-not-wiped",
        "test_namesrv.py::test_write_permission",
        "gateway/namesrv/processors.py",
        "namesrv.routes.set_writable(request.broker_name, False)",
        "namesrv.routes.set_writable(request.broker_name, True)",
    ),
    deviation(
        "wire",
        "oneway-request-answered",
        "test_protocol.py::test_wrong_oneway",
        "remoting/frame_connection.py",
        "return None if command.flag & ONEWAY_FLAG else answer",
        "return answer",
    ),
    deviation(
        "wire",
        "missing-field-taken-for-zero",
        "test_malformed.py::test_broker[30]",
        "remoting/declare.py",
        'f"missing({item.wire!r})" if item.default is MISSING else',
        '"0" if item.default is MISSING else',
    ),
    deviation(
        "client",
        "members-not-notified",
        "test_heartbeat.py::test_ids_changed",
        f"{BROKER}/consumers/client_registry.py",
        "                connection.send_oneway(notice)\n",
        "",
    ),
    deviation(
        "client",
        "second-version-of-heartbeats-not-announced",
        "test_heartbeat.py::test_v2",
        f"{PROCESSORS}/heartbeats.py",
        "is_support_heart_beat_v2=True",
        "is_support_heart_beat_v2=False",
    ),
    deviation(
        "ordered",
        "lock-released-by-anybody",
        "test_locks.py::test_unlock_by_other",
        f"{BROKER}/consumers/queue_locks.py",
        "if lease is not None and lease.client_id == client_id:",
        "if lease is not None:",
    ),
    deviation(
        "namespace",
        "topic-created-by-a-unit-not-flagged",
        "test_namespaces.py::test_unit_send",
        SEND_HANDLER,
        "request.default_topic, request.default_topic_queue_nums, flags",
        "request.default_topic, request.default_topic_queue_nums, 0",
    ),
    deviation(
        "reply",
        "reply-for-nobody-not-stored",
        "test_replies.py::test_nobody",
        f"{PROCESSORS}/send.py",
        "if broker.config.store_reply_message_enable:",
        "if broker.config.store_reply_message_enable and not problem:",
    ),
    deviation(
        "restart",
        "offsets-not-saved-by-an-orderly-stop",
        "test_restart.py::test_stop",
        f"{BROKER}/assembly/service.py",
        "(_persist_unless_flush_failed, takeover, broker.offsets)",
        "(_persist_unless_flush_failed, takeover)",
    ),
    deviation(
        ACCESS,
        "source-address-of-a-rule-ignored",
        "acceptance/access_control/test_access_control.py::test_source_addresses[ours]",
        "gateway/auth/policies.py",
        "return not self.source_ips or any(",
        "return True or any(",
    ),
)

PROTOCOL_DEVIATIONS: Final = DeviationCatalogue(
    defects=_DEVIATIONS,
    rule="area",
    rules=(*AREAS, ACCESS),
    page="compat_tests/README.md",
)
