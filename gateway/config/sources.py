"""Read configuration from files, environment and flags into one checked ServeConfig.

Later sources win: defaults < files (-c, in the order given) < environment < flags (--set before the named flags).

An unknown key is an error on the command line and in the environment, where it can only be a typing error: with a
misspelt flushDiskType the server would start with weaker durability. Official files may contain keys of other versions,
so there an unknown key is a notice, unless the caller is strict.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from codec.constants import MASTER_ID
from codec.native import native_absence
from gateway.config.keys import (
    CLIENT_ENVIRONMENT_PREFIX,
    CONSOLE_ENVIRONMENT_PREFIX,
    ENVIRONMENT_PREFIX,
    Key,
    Value,
    controller_variable,
    keys_of,
    upper_snake,
    with_values,
)
from gateway.config.process import (
    ALL_ADDRESSES,
    AUTO,
    PROXY_PORT,
    TABLES,
    AuthConfig,
    BrokerConfig,
    ControllerConfig,
    ListenerLimits,
    NamesrvConfig,
    ProcessConfig,
    ProxyConfig,
    ServeConfig,
    TlsConfig,
)
from gateway.config.properties_file import PropertiesError, decode_text, parse_properties
from gateway.config.replication import ASYNC_MASTER, SLAVE, UNDECIDED_ID
from gateway.config.replication import Role as BrokerRole
from gateway.config.store import OFFICIAL_STORE
from gateway.config.unsupported import (
    REASONS,
    UNUSED,
    UNUSED_REASON,
    reason_for,
    refusal_of,
)
from toolkit.settings import SettingsError
from toolkit.suggestions import nearest_name

Role = Literal["serve", "namesrv", "broker", "controller", "proxy"]

BROKER_PORT_STEP = 10
_KUBERNETES_VARIABLE = re.compile(
    ENVIRONMENT_PREFIX + r"(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?)"
)
"""Variables that Kubernetes sets in every pod beside a service called rmq-gateway."""
_IN_MEMORY_WITHOUT = ("storePathRootDir", "storePathCommitLog", "kvConfigPath", "configStorePath")
"""Keys that name files, which a server in memory does not have."""
_SHARED_WITH_CONTROLLER = ("scanNotActiveBrokerInterval", "configBlackList")
"""Keys of a namesrv that also count for a controller in its process. The official server fills both from one file."""
_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]", "::1")
_SEARCH = {
    "namesrv": ("namesrv", "listener", "tls", "auth", "process", "broker", "controller"),
    "broker": ("broker", "listener", "tls", "auth", "process", "namesrv", "controller"),
    "proxy": ("broker", "listener", "tls", "auth", "process", "namesrv", "controller"),
    "controller": ("controller", "listener", "tls", "auth", "process", "namesrv", "broker"),
}


class ConfigError(ValueError):
    """Configuration that cannot be used; the message is for the person who wrote it."""


@dataclass(frozen=True, slots=True)
class SourceValue:
    """One value from a source: `origin` names the source in messages; `scope` is namesrv, broker or controller.

    `strict`: an unknown key is an error. `from_flags`: it was given on the command line. `from_file`: it is a line of a
    configuration file.
    """

    name: str
    text: str
    origin: str
    scope: str = "broker"
    strict: bool = True
    from_flags: bool = True
    from_file: bool = False


def load_config(
    role: Role,
    files: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    flags: Iterable[SourceValue] = (),
    *,
    strict: bool = False,
) -> ServeConfig:
    """Return the configuration of a process of this role. ``strict`` refuses unknown keys in files too.

    Raises ConfigError.
    """
    scope = "broker" if role == "serve" else role
    values: list[SourceValue] = []
    for path in files:
        values += values_of_file(path, "namesrv" if "namesrv" in os.path.basename(path) else scope, strict)
    values += values_of_environment(environment or {}, role)
    values += [_value_of_set(text, scope) for text in sets]
    values += flags
    return assemble(role, values)


def values_of_file(path: str, scope: str, strict: bool = False) -> list[SourceValue]:
    """Read every property of a file in official syntax. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            text = decode_text(file.read())
        entries = parse_properties(text)
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from problem
    except PropertiesError as problem:
        raise ConfigError(f"{path}:{problem.line}: {problem.reason}") from problem
    return [
        SourceValue(
            entry.key, entry.value, f"{path}:{entry.line}", scope, strict, from_flags=False, from_file=True
        )
        for entry in entries
    ]


def values_of_environment(environment: Mapping[str, str], role: Role) -> list[SourceValue]:
    """Read the variables RMQ_GATEWAY_<KEY>; RMQ_GATEWAY_NAMESRV_<KEY> for a namesrv's key that brokers have, too.

    A broker on its own, and a proxy, also take the official NAMESRV_ADDR, below RMQ_GATEWAY_NAMESRV_ADDR.
    """
    names = {key.environment: ("broker", name) for name, key in keys_of(BrokerConfig).items()}
    names |= {
        controller_variable(key): ("controller", name) for name, key in keys_of(ControllerConfig).items()
    }
    for table in (ListenerLimits, TlsConfig, AuthConfig, ProcessConfig):
        names |= {key.environment: ("broker", name) for name, key in keys_of(table).items()}
    for name in keys_of(NamesrvConfig):
        names[f"{ENVIRONMENT_PREFIX}NAMESRV_{upper_snake(name)}"] = ("namesrv", name)
        names.setdefault(ENVIRONMENT_PREFIX + upper_snake(name), ("namesrv", name))
    values = []
    if role in ("broker", "proxy") and environment.get("NAMESRV_ADDR"):
        official = environment["NAMESRV_ADDR"]
        values.append(SourceValue("namesrvAddr", official, "environment NAMESRV_ADDR", from_flags=False))
    for variable, text in sorted(environment.items()):
        if variable.startswith((CLIENT_ENVIRONMENT_PREFIX, CONSOLE_ENVIRONMENT_PREFIX)):
            continue
        if variable.startswith(ENVIRONMENT_PREFIX) and not _KUBERNETES_VARIABLE.fullmatch(variable):
            scope, name = names.get(variable, ("broker", variable))
            values.append(SourceValue(name, text, f"environment {variable}", scope, from_flags=False))
    return values


def _value_of_set(text: str, scope: str) -> SourceValue:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        # Of a text without a key only its first word is shown, because the rest may be a secret.
        word = re.split(r"[^\w.]", text)[0]
        raise ConfigError(f"--set {word}: expected key=value")
    return SourceValue(name.strip(), value, f"--set {name.strip()}", scope)


def resolve_key(name: str, scope: str) -> tuple[str, Key] | None:
    """Return the table and declaration of a key as seen from a scope; `namesrv.x` and `broker.x` name the table."""
    table, dot, rest = name.partition(".")
    if dot and table in TABLES and rest in keys_of(TABLES[table]):
        return table, keys_of(TABLES[table])[rest]
    for table in _SEARCH[scope]:
        declared = keys_of(TABLES[table]).get(name)
        if declared is not None:
            return table, declared
    return None


def assemble(role: Role, source_values: Iterable[SourceValue]) -> ServeConfig:
    """Check values, of which later ones win, and build the configuration of a process. Raises ConfigError."""
    source_values = list(source_values)
    values: dict[str, dict[str, Value]] = {table: {} for table in TABLES}
    notices: dict[str, None] = {}
    asks_address_server = _asks_address_server(role, source_values)
    for source_value in source_values:
        declared = resolve_key(source_value.name, source_value.scope)
        if declared is None:
            notice = _notice_of_unknown(source_value)
            if source_value.strict and reason_for(source_value.name) is None:
                raise ConfigError(notice)
            notices[notice] = None
        else:
            table, key = declared
            if role == "serve" and source_value.from_file and key.name in _ELSEWHERE:
                if _ELSEWHERE[key.name](source_value.text):
                    notices[_notice_of_namesrv(key, source_value)] = None
                continue
            if _means_default(key, source_value):
                notices[f"{source_value.origin}: {key.name} is empty, so it has no effect"] = None
                continue
            try:
                value = _parse(key, source_value)
            except ConfigError as problem:
                if key.name not in _ADDRESS_SERVER_KEYS or asks_address_server:
                    raise
                notices[f"{problem}; it has no effect, because no address server is asked"] = None
                continue
            values[table][key.name] = value
            if table == "namesrv" and source_value.name in _SHARED_WITH_CONTROLLER:
                values["controller"].setdefault(key.name, value)
            if key.setting.secret and source_value.from_file:
                notices |= dict.fromkeys(_readable_secrets(source_value.origin.rpartition(":")[0]))
            if (written := _beyond_range(key, source_value, value)) is not None:
                notices[f"{source_value.origin}: {key.name}={written} is out of range; {value} is used"] = (
                    None
                )
            if key.name in UNUSED and value != key.setting.default_value:
                notices[f"{source_value.origin}: {source_value.name} {UNUSED_REASON}"] = None
    _check_served(source_values)
    _check_contradictions(source_values, in_memory=bool(values["process"].get("memoryStore")))
    if role != "serve":
        values["process"].setdefault("bindAddress", ALL_ADDRESSES)
    if role == "proxy":
        values["process"].setdefault("grpcServerPort", PROXY_PORT)
    broker = with_values(BrokerConfig(), values["broker"])
    process = with_values(ProcessConfig(), values["process"])
    _check_replicas(role, broker, process)
    if process.replicas > 1:
        process = replace(process, processes=True)  # a kill or a full disk must not end both
    _check_control(role, process)
    _check_grpc(role, broker, process)
    _check_native(role, broker)
    namesrv = with_values(NamesrvConfig(), values["namesrv"]) if role in ("serve", "namesrv") else None
    has_brokers = role in ("serve", "broker")
    if has_brokers:
        _check_role(broker, process, source_values)
    brokers = tuple(_with_slaves(_brokers(broker, process), process.replicas)) if has_brokers else ()
    controller = None
    if role == "controller" or (namesrv is not None and namesrv.enable_controller):
        controller = with_values(ControllerConfig(), values["controller"])
        _check_controller(controller)
    proxy = _proxy(broker) if role == "proxy" else None
    _check_ports(namesrv, brokers, controller)
    limits = with_values(ListenerLimits(), values["listener"])
    if role == "broker" and not broker.namesrv_addr and not broker.address_server:
        notices["namesrvAddr is empty: clients cannot find this broker through a namesrv"] = None
    if "bindAddress" not in values["process"]:
        notices |= dict.fromkeys(_unreachable_addresses(broker))
    if brokers and not process.memory and "storePathRootDir" not in values["broker"]:
        notices |= dict.fromkeys(_passed_over_stores())
    if process.address_server_list not in ("", AUTO) and process.http_port < 0:
        notices["addressServerList has no effect: set httpPort, where clients find the list"] = None
    export = process.metrics_export
    if export.exporter_type == "PROM" and process.http_port < 0:
        notice = "metricsExporterType=PROM opens no port here: set httpPort, where Prometheus finds /metrics"
        notices[notice] = None
    if export.in_delta and not export.pushes:
        notices["metricsInDelta has no effect: metricsExporterType pushes nothing"] = None
    tls = with_values(TlsConfig(), values["tls"])
    auth = with_values(AuthConfig(), values["auth"])
    _check_front_credentials(role, process, auth)
    return ServeConfig(process, limits, tls, auth, namesrv, brokers, tuple(notices), controller, proxy)


def _asks_address_server(role: Role, source_values: Iterable[SourceValue]) -> bool:
    """Return True if the values that win make a broker learn its namesrvs from an address server."""
    texts = dict.fromkeys(_ELSEWHERE, "")
    for source_value in source_values:
        declared = resolve_key(source_value.name, source_value.scope)
        if declared is None or declared[1].name not in texts or _means_default(declared[1], source_value):
            continue
        if role != "serve" or not source_value.from_file:
            texts[declared[1].name] = source_value.text
    is_on = _is_on(texts["fetchNamesrvAddrByAddressServer"])
    return is_on and not _names_any(texts["namesrvAddr"])


def _means_default(key: Key, source_value: SourceValue) -> bool:
    """Return True for an empty value in a file where a value is needed.

    The official server keeps its default there: it cannot read a number from the text, and says nothing.
    """
    return not (source_value.from_flags or source_value.text.strip() or key.accepts_empty)


def _beyond_range(key: Key, source_value: SourceValue, value: Value) -> str | None:
    """Return the number as it was written if it was clamped to the range of the key."""
    text = source_value.text.strip()
    return text if key.is_clamped and int(text) != value else None


def _parse(key: Key, source_value: SourceValue) -> Value:
    label = (
        source_value.origin
        if source_value.origin.endswith(key.name)
        else f"{source_value.origin}: {key.name}"
    )
    try:
        value: Value = key.parse(source_value.text, label)
    except SettingsError as problem:
        raise ConfigError(f"{problem}{_hint(key, source_value.text)}") from problem
    return value


def _hint(key: Key, text: str) -> str:
    """Return what is probably wrong with a value, as the continuation of an error."""
    if re.search(r"\s#", text):
        return ". In these files a comment needs a line of its own"
    if key.name == "namesrvAddr" and "://" in text:
        return ". Leave out the scheme"
    if key.name == "namesrvAddr" and "," in text:
        return '. Separate addresses with ";"'
    return ""


def _check_served(source_values: Iterable[SourceValue]) -> None:
    """Refuse values that ask for what is not served, such as a controller; a later source may overrule them."""
    effective = {source_value.name.rpartition(".")[2]: source_value for source_value in source_values}
    for name, source_value in effective.items():
        refusal = refusal_of(name, source_value.text)
        if refusal is not None:
            raise ConfigError(f"{source_value.origin}: {refusal}")


def _check_role(broker: BrokerConfig, process: ProcessConfig, source_values: Iterable[SourceValue]) -> None:
    """Refuse a role and an id that do not fit together. Source: BrokerStartup.buildBrokerController, 5.4.0.

    Deviation: the official broker starts a master with id 0 whatever brokerId says.
    """
    origins = {source_value.name.rpartition(".")[2]: source_value.origin for source_value in source_values}
    role = broker.replication.broker_role
    if broker.store.staged_publish and role != ASYNC_MASTER:
        raise ConfigError(
            f"{origins['stagedPublish']}: stagedPublish=true does not go with brokerRole={role}, because a slave gets "
            "neither staged messages nor the marks of published batches. Set stagedPublish=false, or "
            f"brokerRole={ASYNC_MASTER}, which then serves no slaves"
        )
    if broker.replication.enable_controller_mode:
        _check_controlled(broker, origins)
        return
    if broker.broker_id == UNDECIDED_ID:
        raise ConfigError(
            f'{origins["brokerId"]}: brokerId: invalid value "{UNDECIDED_ID}" (expected a whole number, at least 0). '
            "Only a controller gives ids: set enableControllerMode=true for one"
        )
    if broker.role is BrokerRole.SLAVE:
        if broker.broker_id == MASTER_ID:
            raise ConfigError(
                f"{origins['brokerRole']}: brokerRole=SLAVE needs a brokerId of its own. Set brokerId=1, or another "
                "number above 0 that no other broker of its name has"
            )
        if process.brokers > 1:
            raise ConfigError(
                f"brokers={process.brokers} are masters. Start each slave as a process of its own"
            )
    elif broker.broker_id != MASTER_ID:
        raise ConfigError(
            f"{origins['brokerId']}: brokerId={broker.broker_id} asks for a replica. Set brokerRole=SLAVE to run "
            f"one, or brokerId={MASTER_ID}, in the file or with --set, to run a master"
        )


def _check_controlled(broker: BrokerConfig, origins: Mapping[str, str]) -> None:
    """Refuse settings with which no controller could decide about the role of a broker."""
    settings = broker.replication
    origin = origins["enableControllerMode"]
    if not settings.controller_addr:
        raise ConfigError(
            f"{origin}: enableControllerMode=true needs the controllers' addresses in controllerAddr"
        )
    if settings.fetch_controller_addr_by_dns_lookup and ";" in settings.controller_addr:
        raise ConfigError(
            f"{origins['fetchControllerAddrByDnsLookup']}: fetchControllerAddrByDnsLookup=true looks one host name up. "
            f"Name one host in controllerAddr, not {settings.controller_addr}"
        )
    if broker.store.staged_publish:
        raise ConfigError(
            f"{origins['stagedPublish']}: stagedPublish=true does not go with enableControllerMode=true, because a "
            "slave gets neither staged messages nor the marks of published batches. Set one of them to false"
        )
    for name, is_on in (
        ("enableSlaveActingMaster", settings.enable_slave_acting_master),
        ("haMasterAddress", bool(settings.ha_master_address)),
    ):
        if is_on:
            raise ConfigError(
                f"{origins[name]}: {name} does not go with enableControllerMode=true: the controller decides who the "
                f"master is. Leave out {name}"
            )


def _check_controller(controller: ControllerConfig) -> None:
    """Refuse a group that cannot work: without this controller in it, or with several that share no state."""
    peers = controller.all_peers()
    if controller.own_peer() is None:
        raise ConfigError(
            f"controllerDLegerSelfId={controller.self_id} is not in controllerDLegerPeers={controller.peers}. Add "
            f"{controller.self_id}-host:port to it"
        )
    if len({peer.member_id for peer in peers}) < len(peers):
        raise ConfigError(f"controllerDLegerPeers={controller.peers} has an id twice")
    if len(peers) > 1 and not controller.etcd:
        raise ConfigError(
            f"controllerDLegerPeers has {len(peers)} controllers, which share their state through etcd. Set "
            "controllerEtcd, or name one controller only"
        )
    if controller.etcd_key and not controller.etcd_certificate:
        raise ConfigError(
            "controllerEtcdKey is set, but controllerEtcdCert, whose key it is, is not. Set both"
        )
    files = {"controllerEtcdCa": controller.etcd_ca, "controllerEtcdCert": controller.etcd_certificate}
    for name, file in files.items():
        if file and not controller.etcd_is_encrypted():
            raise ConfigError(
                f"{name} is set, but no address in controllerEtcd={controller.etcd} begins with https://. Correct the "
                f"addresses, or leave out {name}"
            )


def _check_contradictions(source_values: Iterable[SourceValue], *, in_memory: bool) -> None:
    """Refuse flags that contradict each other; a flag may overrule a file or a variable."""
    flags = {
        source_value.name.rpartition(".")[2]: source_value
        for source_value in source_values
        if source_value.from_flags
    }
    for name in _IN_MEMORY_WITHOUT if in_memory and "memoryStore" in flags else ():
        if name in flags:
            raise ConfigError(
                f"{flags['memoryStore'].origin} and {flags[name].origin} contradict each other: in memory nothing is "
                "written to disk. Pass one of them"
            )


def _check_replicas(role: Role, broker: BrokerConfig, process: ProcessConfig) -> None:
    """Refuse replicas where this process would not start them, or could not promote them."""
    if process.replicas == 1:
        return
    setting = f"brokerReplicas={process.replicas} (--replicas)"
    if role != "serve":
        raise ConfigError(f"{setting} needs `serve`. Elsewhere each broker is started with its brokerRole")
    if process.memory:
        raise ConfigError(f"{setting} needs stores on disk. Leave out memoryStore (--memory)")
    if broker.store.store_path_commit_log:
        raise ConfigError(
            f"{setting}: each replica has a commit log of its own. Leave out storePathCommitLog"
        )
    if broker.replication.enable_controller_mode:
        raise ConfigError(
            f"{setting} starts masters and their slaves. Start each replica under a controller by itself, or leave out "
            "enableControllerMode"
        )
    if broker.role is not BrokerRole.MASTER:
        raise ConfigError(f"{setting} starts masters and their slaves. Leave out brokerRole=SLAVE")


def _check_control(role: Role, process: ProcessConfig) -> None:
    """Refuse the API for tests where it would be useless, or would endanger stored messages."""
    if process.control_port < 0:
        return
    if role != "serve" or not process.memory:
        raise ConfigError(
            f"controlPort={process.control_port} (--control) is for tests: "
            "it needs `serve` with memoryStore=true (--memory)"
        )
    if process.processes:
        raise ConfigError(
            "controlPort (--control) and brokerProcesses (--processes) exclude each other. Leave one of them out"
        )


def _check_grpc(role: Role, broker: BrokerConfig, process: ProcessConfig) -> None:
    """Refuse the gRPC port where there is nothing that it could serve, and a proxy without it."""
    if process.grpc_port < 0:
        if role == "proxy":
            raise ConfigError(
                "grpcServerPort=-1: a proxy serves this port only. Name one, or 0 for a free one"
            )
        return
    if role in ("namesrv", "controller"):
        raise ConfigError(
            f"grpcServerPort={process.grpc_port} needs brokers: use `serve`, `broker`, or `proxy` for those of others"
        )
    if role == "broker" and process.processes and not _names_any(broker.namesrv_addr):
        raise ConfigError(
            f"grpcServerPort={process.grpc_port} with brokerProcesses needs a namesrv. Set namesrvAddr"
        )


def _check_front_credentials(role: Role, process: ProcessConfig, auth: AuthConfig) -> None:
    """Refuse access control without the user as whom the gRPC front reads topics, groups and users from the brokers."""
    is_remote = role == "proxy" or (process.processes and process.grpc_port >= 0)
    if is_remote and auth.is_enabled and not auth.inner_credentials.strip():
        raise ConfigError(
            "with access control the gRPC port reads topics and groups from the brokers as a super user. Set "
            'innerClientAuthenticationCredentials={"accessKey":"…","secretKey":"…"}'
        )


def _proxy(broker: BrokerConfig) -> ProxyConfig:
    """Return the settings of a proxy, which have the names that brokers know them by. Raises ConfigError."""
    if not _names_any(broker.namesrv_addr):
        raise ConfigError(
            "a proxy needs the addresses of the namesrvs of its cluster. Pass --namesrv HOST:PORT (namesrvAddr)"
        )
    return ProxyConfig(broker.namesrv_addr, broker.store.max_message_size_bytes)


def _check_native(role: Role, broker: BrokerConfig) -> None:
    """Refuse to do without the C extension where it is required."""
    if role in ("serve", "broker") and broker.flow.native_sends == "require" and (reason := native_absence()):
        raise ConfigError(
            f"nativeSends=require: the extension rocketmq_native cannot be used ({reason}). With nativeSends=auto the "
            "server works without it"
        )


def _unreachable_addresses(broker: BrokerConfig) -> Iterator[str]:
    """Yield a notice if clients are sent to an address of this machine that `serve` does not listen on by default."""
    remedy = f"`serve` listens on loopback only. Pass --host {ALL_ADDRESSES} to serve other machines"
    if broker.broker_ip not in (AUTO, *_LOOPBACK_HOSTS):
        yield f"clients are sent to brokerIP1={broker.broker_ip}, but {remedy}"
    if any(
        address.rpartition(":")[0] not in _LOOPBACK_HOSTS
        for address in broker.namesrv_addr.split(";")
        if address
    ):
        yield f"clients of {broker.namesrv_addr} are sent here, but {remedy}"
    if broker.address_server:
        yield f"clients of the namesrvs that {broker.address_server} lists are sent here, but {remedy}"


def _passed_over_stores() -> Iterator[str]:
    """Yield a notice if the default folder of the official broker holds a store: it is not opened without a word."""
    if os.path.isdir(os.path.join(os.path.expanduser(OFFICIAL_STORE), "commitlog")):
        yield (
            f"{OFFICIAL_STORE}, the default folder of the official broker, holds a store that is not opened. "
            f"Pass --store {OFFICIAL_STORE} to continue it"
        )


def _readable_secrets(path: str) -> Iterator[str]:
    """Yield a notice if other accounts of the machine can read a file with passwords."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        yield f"{path} has passwords, and other accounts can read it: chmod 600 {path}"


def _names_any(text: str) -> bool:
    return bool(text.strip(" ;"))


def _is_on(text: str) -> bool:
    return text.strip().lower() == "true"


_ELSEWHERE: Mapping[str, Callable[[str], bool]] = {
    "namesrvAddr": _names_any,
    "fetchNamesrvAddrByAddressServer": _is_on,
}
"""Keys that make a broker register with other servers, by the test that a value does so."""
_ADDRESS_SERVER_KEYS = ("rmqAddressServerDomain", "rmqAddressServerSubGroup")
"""Keys that only count if an address server is asked: a value that cannot be used is then an error."""


def _notice_of_namesrv(key: Key, source_value: SourceValue) -> str:
    """Return that a file's namesrvs are not registered with.

    The file is usually that of another broker, whose clients would be sent to this one.
    """
    text = source_value.text.strip()
    flag = f'--register-at "{text}"' if key.name == "namesrvAddr" else f"--set {key.name}={text}"
    return (
        f"{source_value.origin}: {key.name}={text} is ignored, because `serve` has a namesrv of its own. "
        f"To register there as well, pass {flag}"
    )


def _notice_of_unknown(source_value: SourceValue) -> str:
    reason = reason_for(source_value.name)
    if reason is not None:
        return f"{source_value.origin}: {source_value.name} {reason}"
    suggestion = nearest_key(source_value.name)
    return f"{source_value.origin}: unknown key {source_value.name}" + (
        f"; did you mean {suggestion}?" if suggestion else ""
    )


def nearest_key(name: str) -> str | None:
    """Return the known key, or environment variable, that looks most like `name`."""
    names = [name for table in TABLES.values() for name in keys_of(table)]
    names += [official for names in REASONS.values() for official in names.split()]
    if name.startswith(ENVIRONMENT_PREFIX):
        names = [ENVIRONMENT_PREFIX + upper_snake(name) for name in names]
    return nearest_name(name, names, cutoff=0.7)


def _brokers(first: BrokerConfig, process: ProcessConfig) -> list[BrokerConfig]:
    """Return the brokers of one process: names -a, -b, …, ports 10 apart, each with a directory below the root."""
    if process.brokers == 1:
        return [first]
    root = first.store.store_path_root_dir
    if not process.memory and os.path.isdir(os.path.join(root, "commitlog")):
        raise ConfigError(
            f"{root} holds the store of a single broker. Name another directory (storePathRootDir) for "
            f"{process.brokers} brokers"
        )
    base = first.broker_name.removesuffix("-a")
    names = [f"{base}-{chr(ord('a') + index)}" for index in range(process.brokers)]
    return [_broker_at(first, index, name, root) for index, name in enumerate(names)]


def _broker_at(first: BrokerConfig, index: int, name: str, root: str) -> BrokerConfig:
    def shifted(port: int) -> int:
        return port + index * BROKER_PORT_STEP if port else 0

    return replace(
        first,
        broker_name=name,
        listen_port=shifted(first.listen_port),
        advertised_port=shifted(first.advertised_port),
        ha_listen_port=shifted(first.ha_listen_port),
        store=replace(first.store, store_path_root_dir=os.path.join(root, name)),
    )


def _with_slaves(masters: list[BrokerConfig], replicas: int) -> list[BrokerConfig]:
    """Return masters and slaves. The ports of slaves follow those of the masters, and their stores stand beside."""
    brokers = list(masters)
    for broker_id in range(1, replicas):
        for master in masters:
            slave = _broker_at(
                master, broker_id * len(masters), master.broker_name, master.store.store_path_root_dir
            )
            store = replace(
                slave.store, store_path_root_dir=f"{master.store.store_path_root_dir}-slave-{broker_id}"
            )
            replication = replace(slave.replication, broker_role=SLAVE)
            brokers.append(replace(slave, broker_id=broker_id, store=store, replication=replication))
    return brokers


def _check_ports(
    namesrv: NamesrvConfig | None, brokers: tuple[BrokerConfig, ...], controller: ControllerConfig | None
) -> None:
    owners: dict[int, str] = {}
    needed = [("the namesrv", namesrv.listen_port)] if namesrv else []
    if controller is not None and (peer := controller.own_peer()) is not None:
        needed.append(("the controller (controllerDLegerPeers)", peer.port))
    for broker in brokers:
        needed.append((broker.replica_name, broker.listen_port))
        needed.append((f"{broker.replica_name} (listenPort - 2)", broker.vip_port or 0))
        needed.append((f"{broker.replica_name} (haListenPort)", broker.ha_listen_port))
    for owner, port in needed:
        if port > 65535:
            raise ConfigError(f"port {port} of {owner} is above 65535")
        if port and owners.setdefault(port, owner) != owner:
            raise ConfigError(f"port {port} is configured for both {owners[port]} and {owner}")
