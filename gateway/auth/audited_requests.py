"""The requests that leave a line in the audit log: administrative ones that change something, by request code.

A new request whose needs include Create, Update or Delete must be declared here, as audited or as not audited with the
reason; a test checks that. `audit.py` writes the lines.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from codec.command import Command
from codec.java_numbers import quoted
from gateway.config.keys import keys_of
from gateway.config.process import BrokerConfig, NamesrvConfig
from gateway.config.properties_file import decode_text, parse_properties
from remoting.declare import REQUESTS, Request
from remoting.requests import (
    admin,
    auth,
    client,
    controller,
    groups,
    ha,
    namesrv,
    offsets,
    pop,
    replication,
    roles,
    timers,
    topics,
    transaction,
)

DescribeBody = Callable[[Command], Iterator[str]]
"""Yields parts of a line for a body; may raise any exception for a malformed one."""

MAX_DESCRIBED_BODY_BYTES: Final = 16 * 1024
"""Of a larger body only the size is logged: parsing it a second time would delay all other clients."""
HIDDEN_FIELDS: Final[Mapping[int, frozenset[str]]] = {namesrv.PutKvConfig.code: frozenset({"value"})}
"""Header fields whose values may be secrets, by request code."""


def _parse_body(command: Command) -> Any:
    declared: Any = REQUESTS[command.code].from_command(command)
    return declared.data


def _no_body(command: Command) -> Iterator[str]:
    yield from ()


def _properties(command: Command) -> Iterator[str]:
    """Yield changed settings; only the name of a key that no request can change, because its value may be secret."""
    for entry in parse_properties(decode_text(bytes(command.body))):
        is_shown = any(
            entry.key in keys and keys[entry.key].is_live and not keys[entry.key].setting.secret
            for keys in map(keys_of, (BrokerConfig, NamesrvConfig))
        )
        yield f"{entry.key}={entry.value}" if is_shown else entry.key


def _topic_list(command: Command) -> Iterator[str]:
    for config in _parse_body(command).topic_config_list:
        yield f"topic={config.topic_name}"


def _group_config(command: Command) -> Iterator[str]:
    yield f"group={_parse_body(command).group_name or ''}"


def _group_list(command: Command) -> Iterator[str]:
    for config in _parse_body(command).group_config_list:
        yield f"group={config.group_name}"


def _request_mode(command: Command) -> Iterator[str]:
    data = _parse_body(command)
    yield from (f"topic={data.topic or ''}", f"group={data.consumer_group or ''}", f"mode={data.mode}")


def _user(command: Command) -> Iterator[str]:
    """Yield the fields of a user that the request contains; the password itself is not shown."""
    data = _parse_body(command)
    properties = {"type": data.user_type, "status": data.user_status, "password": data.password and "given"}
    yield from (f"{name}={value}" for name, value in properties.items() if value)


def _rules(command: Command) -> Iterator[str]:
    for policy in _parse_body(command).policies:
        for entry in policy.entries:
            sources = f" from {'|'.join(entry.source_ips)}" if entry.source_ips else ""
            yield f"{entry.decision} {'|'.join(entry.actions)} on {entry.resource}{sources}"


AUDITED: Final[dict[int, DescribeBody]] = {}
"""The function that describes the body, by request code."""


def _audit(*requests: type[Request[Any]], body: DescribeBody = _no_body) -> None:
    AUDITED.update(dict.fromkeys((request.code for request in requests), body))


_audit(
    topics.UpdateAndCreateTopic, topics.DeleteTopicInBroker, topics.CleanUnusedTopic, topics.CleanExpiredConsumequeue,
    groups.DeleteSubscriptionGroup, groups.UpdateAndGetGroupForbidden,
    offsets.InvokeBrokerToResetOffset, offsets.CloneGroupOffset,
    transaction.ResumeCheckHalfMessage, client.ConsumeMessageDirectly,
    admin.DeleteExpiredCommitlog, admin.ExportRocksdbConfigToJson, admin.SetCommitlogReadMode,
    admin.RemoveColdDataFlowCtrConfig,
    timers.SwitchTimerEngine, pop.PopRollback, ha.ResetMasterFlushOffset,
    roles.ChangeBrokerRole, roles.HandOverBroker,
    auth.AuthDeleteUser, auth.AuthDeleteAcl,
    namesrv.PutKvConfig, namesrv.DeleteKvConfig, namesrv.WipeWritePermOfBroker, namesrv.AddWritePermOfBroker,
    namesrv.DeleteTopicInNamesrv, namesrv.RegisterTopicInNamesrv,
    namesrv.RegisterBroker, namesrv.UnregisterBroker,
)  # fmt: skip
_audit(controller.ControllerElectMaster, controller.CleanBrokerData)
_audit(
    admin.UpdateBrokerConfig,
    admin.UpdateColdDataFlowCtrConfig,
    namesrv.UpdateNamesrvConfig,
    controller.UpdateControllerConfig,
    body=_properties,
)
_audit(topics.UpdateAndCreateTopicList, body=_topic_list)
_audit(groups.UpdateAndCreateSubscriptionGroup, body=_group_config)
_audit(groups.UpdateAndCreateSubscriptionGroupList, body=_group_list)
_audit(pop.SetMessageRequestMode, body=_request_mode)
_audit(auth.AuthCreateUser, auth.AuthUpdateUser, body=_user)
_audit(auth.AuthCreateAcl, auth.AuthUpdateAcl, body=_rules)

NOT_AUDITED: Final[Mapping[int, str]] = {
    offsets.UpdateConsumerOffset.code: "consumers send it several times a second; `OutsideCommits` finds the others",
    namesrv.BrokerHeartbeat.code: "brokers send it every second; it changes nothing",
    replication.PutMessagesAtOffsets.code: "the shadow gateway sends every copied message with it",
    replication.GetReplicatedAccounts.code: "a slave asks for it every few seconds, and it changes nothing",
    replication.RaiseConsumerOffsets.code: "slaves send it; offsets that consumers commit leave no line either",
    replication.OpenReplication.code: "a slave sends it at each connection; the master logs the slave itself",
    controller.ControllerAlterSyncStateSet.code: "masters send it when a slave falls behind; the controller logs it",
    controller.ControllerRegisterBroker.code: "brokers send it at their start; the controller logs the broker",
    controller.ControllerApplyBrokerId.code: "brokers send it at their first start; the controller logs the broker",
    ha.ExchangeBrokerHaInfo.code: "replicas send it every few seconds; it is refused",
    ha.NotifyMinBrokerIdChange.code: "namesrvs send it when a replica comes or goes; it changes nothing",
    ha.NotifyBrokerRoleChanged.code: "controllers send it after elections; it changes nothing by itself",
    roles.CopyTables.code: "masters send it when they hand over, which is audited; it changes nothing by itself",
}
"""The reason for each request that changes something and leaves no line, by request code."""


def describe_request(command: Command) -> str:
    """Return the change that an audited request asks for: its declared header fields, and a description of its body.

    Secrets and undeclared fields are left out. Never raises.
    """
    hidden = HIDDEN_FIELDS.get(command.code, frozenset())
    parts = [
        f"{item.wire}={quoted(command.ext[item.wire])}"
        for item in REQUESTS[command.code].WIRE_FIELDS
        if item.wire in command.ext and item.wire not in hidden
    ]
    if len(command.body) > MAX_DESCRIBED_BODY_BYTES:
        parts.append(f"a body of {len(command.body)} bytes")
    else:
        try:
            parts += map(quoted, AUDITED.get(command.code, _no_body)(command))
        except Exception:  # noqa: BLE001 - the answer to the request tells the error of its body
            parts.append("a body that cannot be read")
    return "; ".join(parts)
