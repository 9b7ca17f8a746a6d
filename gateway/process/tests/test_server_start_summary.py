"""People read at start where the server listens, what it keeps and who may use it."""

import io
import logging
from dataclasses import replace

import pytest

from gateway.config.auth import AuthConfig
from gateway.config.process import NamesrvConfig, ProcessConfig, ServeConfig
from gateway.config.tls import TlsConfig
from gateway.process import server
from gateway.process.server import describe_access, describe_native, describe_tls, log_start
from gateway.runtime.logs import KeyValueFormatter
from gateway.tests.configs import broker_config


@pytest.fixture
def lines():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(KeyValueFormatter())
    logger = logging.getLogger("gateway.process.server")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: stream.getvalue().splitlines()
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_a_server_on_disk(lines):
    broker = broker_config(broker_name="broker-a", store_path_root_dir="/data", flush_disk_type="SYNC_FLUSH")
    config = ServeConfig(brokers=(broker,), namesrv=NamesrvConfig())
    log_start(config, "127.0.0.1:9876", {"broker-a": "127.0.0.1:10911"}, "127.0.0.1:9881")
    ready, store, native_sends, security, next_step = (line for line in lines() if " cores " not in line)
    assert ready.endswith(" ready namesrv=127.0.0.1:9876 broker-a=127.0.0.1:10911 http=127.0.0.1:9881")
    assert store.endswith(" store broker=broker-a directory=/data durability=SYNC_FLUSH")
    assert " native sends brokers=broker-a state=" in native_sends
    assert ' security tls="possible, not required; self-signed certificate" ' in security
    assert security.endswith('access_control="off: whoever reaches the ports may do everything"')
    assert next_step.endswith(' next step do="give clients the namesrv address 127.0.0.1:9876"')


@pytest.mark.parametrize(
    ("mode", "absence", "state"),
    [
        ("auto", "", "on"),
        ("require", "", "on"),
        ("auto", "not built", '"off, not built; Python serves them"'),
        ("off", "", '"off, nativeSends=off; Python serves them"'),
        ("off", "not built", '"off, nativeSends=off; Python serves them"'),
    ],
)
def test_server_says_whether_sends_are_native(lines, monkeypatch, mode, absence, state):
    monkeypatch.setattr(server, "native_absence", lambda: absence)
    broker = broker_config(broker_name="broker-a", native_sends=mode)
    log_start(ServeConfig(brokers=(broker,)), None, {"broker-a": "127.0.0.1:10911"}, None)
    (line,) = [line for line in lines() if " native sends " in line]
    assert line.endswith(f" native sends brokers=broker-a state={state}")


@pytest.mark.parametrize(
    ("auth", "settings", "reason"),
    [
        (AuthConfig(acl_enable=True), {}, "access control looks at each"),
        (AuthConfig(authentication_enabled=True), {}, "access control looks at each"),
        (AuthConfig(), {"send_quota_messages": 5}, "quotas look at each"),
        (AuthConfig(), {"send_quota_bytes": 5}, "quotas look at each"),
    ],
)
def test_server_says_what_looks_at_each_send(monkeypatch, auth, settings, reason):
    monkeypatch.setattr(server, "native_absence", lambda: "")
    assert describe_native(broker_config(**settings), auth) == f"off, {reason}; Python serves them"
    assert describe_native(broker_config(pull_quota_bytes=5), AuthConfig()) == "on"


def test_brokers_with_other_settings_have_lines_of_their_own(lines, monkeypatch):
    monkeypatch.setattr(server, "native_absence", lambda: "")
    brokers = tuple(
        broker_config(broker_name=name, native_sends=mode)
        for name, mode in (("broker-a", "auto"), ("broker-b", "off"), ("broker-c", "require"))
    )
    log_start(ServeConfig(brokers=brokers), None, {"broker-a": "127.0.0.1:10911"}, None)
    shown = [line.partition(" native sends ")[2] for line in lines() if " native sends " in line]
    assert shown == [
        'brokers="broker-a, broker-c" state=on',
        'brokers=broker-b state="off, nativeSends=off; Python serves them"',
    ]


def core_lines(lines, monkeypatch, config, *, cores=8):
    monkeypatch.setattr(server, "usable_cores", lambda: cores)
    log_start(config, "127.0.0.1:9876", {"broker-a": "127.0.0.1:10911"}, None)
    return [line for line in lines() if " cores " in line]


def test_a_server_on_many_cores_is_told_to_use_more_brokers(lines, monkeypatch):
    config = ServeConfig(brokers=(broker_config(),), namesrv=NamesrvConfig())
    (line,) = core_lines(lines, monkeypatch, config)
    assert 'cores usable=8 used=1 do="--brokers 6 --processes uses 6 of them' in line
    assert "1.85 to 1.98 times the messages" in line
    assert "docs/how-to/capacity.md" in line


@pytest.mark.parametrize(
    ("cores", "changes"),
    [
        (2, {}),
        (8, {"brokers": (broker_config(), broker_config(broker_name="broker-b"))}),
        (8, {"process": ProcessConfig(memory=True)}),
        (8, {"process": ProcessConfig(processes=True)}),
        (8, {"namesrv": None}),
    ],
)
def test_who_has_chosen_already_or_has_no_use_for_more_is_told_nothing(lines, monkeypatch, cores, changes):
    config = replace(ServeConfig(brokers=(broker_config(),), namesrv=NamesrvConfig()), **changes)
    assert core_lines(lines, monkeypatch, config, cores=cores) == []


def test_a_server_in_memory_and_a_broker_without_a_namesrv(lines):
    config = ServeConfig(process=ProcessConfig(memory=True), namesrv=None, brokers=(broker_config(),))
    log_start(config, None, {"broker-a": "127.0.0.1:10911"}, None)
    text = "\n".join(lines())
    assert 'directory=memory durability="lost at the end of the process"' in text
    assert 'do="set namesrvAddr: without it no client finds this broker"' in text
    assert "http=" not in text


def test_a_server_that_registers_elsewhere_says_so(lines):
    broker = broker_config(broker_name="broker-a", namesrv_addr="prod:9876")
    log_start(ServeConfig(brokers=(broker,)), "127.0.0.1:9876", {"broker-a": "127.0.0.1:10911"}, None)
    (line,) = [each for each in lines() if "registers" in each]
    assert line.endswith(
        "registers with namesrvs elsewhere, whose clients are sent here broker=broker-a namesrvs=prod:9876"
    )
    assert "WARNING" in line


def test_the_next_step_names_the_grpc_endpoint(lines):
    log_start(ServeConfig(), "127.0.0.1:9876", {"broker-a": "127.0.0.1:10911"}, None, "127.0.0.1:8081")
    assert lines()[-1].endswith(
        'next step do="give clients the namesrv address 127.0.0.1:9876, '
        'and gRPC clients (5.x) the endpoint 127.0.0.1:8081"'
    )


def test_a_broker_that_asks_an_address_server_says_where_clients_find_it(lines):
    settings = {"uses_address_server": True, "address_server_domain": "lists:80"}
    broker = broker_config(broker_name="broker-a", **settings)
    log_start(ServeConfig(namesrv=None, brokers=(broker,)), None, {"broker-a": "127.0.0.1:10911"}, None)
    do = "give clients a namesrv address that http://lists:80/rocketmq/nsaddr lists"
    assert lines()[-1].endswith(f'next step do="{do}"')
    log_start(ServeConfig(brokers=(broker,)), "127.0.0.1:9876", {"broker-a": "127.0.0.1:10911"}, None)
    assert any(line.endswith("namesrvs=http://lists:80/rocketmq/nsaddr") for line in lines())


def test_security_in_words():
    assert describe_tls(TlsConfig(mode="disabled")) == "off"
    assert describe_tls(TlsConfig(mode="enforcing", certificate="/c.pem")) == "required; own certificate"
    assert describe_access(AuthConfig(acl_enable=True)) == "ACL 1.0"
    assert describe_access(AuthConfig(authentication_enabled=True)) == "ACL 2.0: users, no policies"
    users = AuthConfig(authentication_enabled=True, authorization_enabled=True)
    assert describe_access(users) == "ACL 2.0: users and policies"
