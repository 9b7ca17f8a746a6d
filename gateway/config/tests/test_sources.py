"""Files, environment and flags in their order; what is unknown, unsupported or wrong."""

from pathlib import Path

import pytest

from gateway.config.process import NamesrvConfig
from gateway.config.sources import ConfigError, SourceValue, load_config, nearest_key, resolve_key


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_later_sources_win(tmp_path: Path) -> None:
    first = written(
        tmp_path / "broker.conf", "maxMessageSize=1\nfileReservedTime=1\nbrokerPermission=2\nregionId=a"
    )
    second = written(tmp_path / "more.conf", "fileReservedTime=2\nbrokerPermission=4\nregionId=b")
    environment = {"RMQ_GATEWAY_BROKER_PERMISSION": "6", "RMQ_GATEWAY_REGION_ID": "c", "HOME": "/"}
    config = load_config(
        "serve", [first, second], environment, ["regionId=d"], [SourceValue("regionId", "e", "--x")]
    )
    broker = config.brokers[0]
    assert broker.store.max_message_size_bytes == 1
    assert broker.store.file_reserved_hours == 2
    assert broker.broker_permission == 6
    assert broker.region_id == "e"
    assert config.notices == ()


def test_a_file_named_namesrv_speaks_of_the_namesrv(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "broker.conf", "listenPort=1000\nbindAddress=127.0.0.1\nkvConfigPath=/kv"),
        written(tmp_path / "my-namesrv.conf", "listenPort=2000\nserverChannelMaxIdleTimeSeconds=9"),
    ]
    config = load_config("serve", files)
    assert config.namesrv is not None
    assert (config.brokers[0].listen_port, config.namesrv.listen_port) == (1000, 2000)
    assert config.namesrv.kv_config_path == "/kv"
    assert (config.host, config.limits.idle_close_s) == ("127.0.0.1", 9)


def test_a_prefix_names_the_table() -> None:
    config = load_config(
        "serve", sets=["namesrv.listenPort=1", "broker.listenPort=9000", "listener.outputLimit=4096"]
    )
    assert config.namesrv is not None
    assert (config.namesrv.listen_port, config.brokers[0].listen_port) == (1, 9000)
    assert config.limits.output_limit_bytes == 4096


@pytest.mark.parametrize("variable", ["RMQ_GATEWAY_CLIENT_SECRET_KEY", "RMQ_GATEWAY_CONSOLE_LOGIN"])
def test_variables_of_commands_are_no_settings_of_servers(variable: str) -> None:
    assert load_config("serve", environment={variable: "otto:secret"}) == load_config("serve")


def test_environment_of_both_tables() -> None:
    environment = {"RMQ_GATEWAY_LISTEN_PORT": "5000", "RMQ_GATEWAY_NAMESRV_LISTEN_PORT": "6000"}
    environment |= {"RMQ_GATEWAY_FRAME_MAX_LENGTH": "2048", "RMQ_GATEWAY_KV_CONFIG_PATH": "/kv"}
    config = load_config("serve", environment=environment)
    assert config.namesrv == NamesrvConfig(listen_port=6000, kv_config_path="/kv")
    assert config.brokers[0].listen_port == 5000
    assert config.limits.frame_bytes == 2048


def test_a_lone_broker_takes_the_official_variable() -> None:
    official = {"NAMESRV_ADDR": "a:1;b:2"}
    assert load_config("broker", environment=official).brokers[0].namesrv_addr == "a:1;b:2"
    both = official | {"RMQ_GATEWAY_NAMESRV_ADDR": "c:3"}
    assert load_config("broker", environment=both).brokers[0].namesrv_addr == "c:3"
    assert load_config("serve", environment=official).brokers[0].namesrv_addr == ""


def test_roles() -> None:
    assert load_config("broker").namesrv is None
    assert load_config("namesrv").brokers == ()
    assert load_config("namesrv", sets=["listenPort=77"]).namesrv == NamesrvConfig(listen_port=77)


def test_several_brokers(tmp_path: Path) -> None:
    sets = ["brokers=3", f"storePathRootDir={tmp_path}", "brokerName=x-a"]
    brokers = load_config("serve", sets=sets).brokers
    assert [each.broker_name for each in brokers] == ["x-a", "x-b", "x-c"]
    assert [each.listen_port for each in brokers] == [10911, 10921, 10931]
    assert [each.store.store_path_root_dir for each in brokers] == [
        str(tmp_path / name) for name in ("x-a", "x-b", "x-c")
    ]


def test_free_ports_stay_free_ports() -> None:
    assert [
        each.listen_port for each in load_config("serve", sets=["brokers=2", "listenPort=0"]).brokers
    ] == [0, 0]


def test_the_store_of_one_broker_is_not_taken_by_several(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    sets = ["brokers=2", f"storePathRootDir={tmp_path}"]
    with pytest.raises(ConfigError, match="holds the store of a single broker"):
        load_config("serve", sets=sets)
    in_memory = {"RMQ_GATEWAY_MEMORY_STORE": "true"}
    assert len(load_config("serve", environment=in_memory, sets=sets).brokers) == 2


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            ["maxMessageSize=big"],
            '--set maxMessageSize: invalid value "big" .expected a whole number of bytes',
        ),
        (["listenPort=65536"], r"from 0 to 65535"),
        (["deleteWhen=25"], "hours of the day"),
        (["messageDelayLevel=1s 5x"], "delays of levels"),
        (["namesrvAddr=host"], "host:port"),
        (["brokerId=1"], 'invalid value "1" .expected a whole number from 0 to 0'),
        (["brokers=27"], r"from 1 to 26"),
        (["nothing"], "--set nothing: expected key=value"),
        (['initAuthenticationUser:{"password":"x"}'], "--set initAuthenticationUser: expected key=value"),
        (["=1"], "expected key=value"),
        (["brokers=9", "listenPort=65500"], "above 65535"),
        (["listenPort=9876"], "port 9876 is configured for both the namesrv and broker-a"),
        (["listenPort=9878"], "configured for both"),
    ],
)
def test_errors_say_where(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("serve", sets=sets)


def test_an_error_in_a_file_names_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path / "broker.conf", "# comment\n\nflushDiskType=SOMETIMES\n")
    with pytest.raises(
        ConfigError,
        match=r'broker\.conf:3: flushDiskType: invalid value "SOMETIMES" .expected "ASYNC_FLUSH" or "SYNC_FLUSH"',
    ):
        load_config("serve", [path])
    path = written(tmp_path / "broken.conf", "a=\\u12")
    with pytest.raises(ConfigError, match=r"broken\.conf:1: "):
        load_config("serve", [path])
    with pytest.raises(ConfigError, match=r"cannot read .*missing"):
        load_config("serve", [str(tmp_path / "missing")])


def test_unknown_and_unsupported_keys_of_files_are_named_once(tmp_path: Path) -> None:
    path = written(tmp_path / "broker.conf", "brokerRole=SLAVE\nfileReservedTim=3\nzzzzzz=1\n")
    notices = load_config("serve", [path], {}, ["brokerRole=SLAVE", "brokerRole=SLAVE"]).notices
    assert len(notices) == 4
    assert notices[0].startswith(f"{path}:1: brokerRole belongs to replication")
    assert notices[1] == f"{path}:2: unknown key fileReservedTim; did you mean fileReservedTime?"
    assert notices[2] == f"{path}:3: unknown key zzzzzz"
    assert notices[3].startswith("--set brokerRole: brokerRole belongs to replication")


@pytest.mark.parametrize(
    ("environment", "sets", "message"),
    [
        (
            {},
            ["flushDisk=SYNC_FLUSH"],
            "--set flushDisk: unknown key flushDisk; did you mean flushDiskType.$",
        ),
        ({}, ["zzzzzz=1"], "--set zzzzzz: unknown key zzzzzz$"),
        (
            {"RMQ_GATEWAY_BROKERZ": "1"},
            [],
            r"unknown key RMQ_GATEWAY_BROKERZ; did you mean RMQ_GATEWAY_BROKERS.$",
        ),
    ],
)
def test_unknown_keys_of_flags_and_variables_are_errors(
    environment: dict[str, str], sets: list[str], message: str
) -> None:
    """They were warnings, and the server started with weaker durability than was asked for."""
    with pytest.raises(ConfigError, match=message):
        load_config("serve", [], environment, sets)


def test_strict_makes_unknown_keys_of_files_errors(tmp_path: Path) -> None:
    path = written(tmp_path / "broker.conf", "brokerRole=ASYNC_MASTER\nflushDisk=SYNC_FLUSH\n")
    assert len(load_config("serve", [path]).notices) == 2
    with pytest.raises(
        ConfigError, match=r"broker\.conf:2: unknown key flushDisk; did you mean flushDiskType"
    ):
        load_config("serve", [path], strict=True)


def test_variables_of_a_kubernetes_service_are_not_ours() -> None:
    names = (
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_NAMESRV",
        "PORT",
        "PORT_9876_TCP",
        "PORT_9876_TCP_ADDR",
    )
    environment = {f"RMQ_GATEWAY_{name}": "tcp://10.0.0.1:9876" for name in names}
    assert load_config("serve", environment=environment).notices == ()


@pytest.mark.parametrize("key", ["storePathRootDir", "kvConfigPath", "namesrv.configStorePath"])
def test_files_of_a_server_in_memory_contradict_it(key: str, tmp_path: Path) -> None:
    memory = SourceValue("memoryStore", "true", "--memory")
    with pytest.raises(ConfigError, match=f"--memory and --set {key} contradict each other"):
        load_config("serve", sets=[f"{key}={tmp_path}"], flags=[memory])
    assert load_config("serve", sets=[f"{key}={tmp_path}", "memoryStore=false"]).notices == ()
    path = written(tmp_path / "namesrv.conf", f"{key}={tmp_path}\n")
    assert load_config("serve", [path], flags=[memory]).memory, "a flag overrules a file"


def test_a_declared_key_without_effect_is_named_when_it_is_changed() -> None:
    assert load_config("serve", sets=["forceRegister=true"]).notices == ()
    (notice,) = load_config("serve", sets=["forceRegister=false"]).notices
    assert notice == "--set forceRegister: forceRegister has no effect yet"


def test_nearest_ignores_case() -> None:
    assert nearest_key("FLUSHDISKTYPE") == "flushDiskType"
    assert nearest_key("x") is None


def test_what_both_tables_have_depends_on_the_scope() -> None:
    for scope in ("broker", "namesrv"):
        found = resolve_key("configBlackList", scope)
        assert found is not None
        assert found[0] == scope
    assert resolve_key("nothing", "broker") is None


def test_a_broker_that_no_namesrv_knows_says_so() -> None:
    (notice,) = load_config("broker").notices
    assert "namesrvAddr is empty" in notice
    assert not load_config("broker", sets=["namesrvAddr=h:1"]).notices
    assert not load_config("serve").notices


@pytest.mark.parametrize(
    ("role", "others"),
    [("namesrv", []), ("serve", ["brokerProcesses=true"]), ("serve", ["controlPort=0", "memoryStore=true"])],
)
def test_the_grpc_port_needs_brokers_of_the_same_process(role, others):
    with pytest.raises(ConfigError, match="grpcServerPort"):
        load_config(role, [], {}, ["grpcServerPort=8081", *others], [])


def test_the_grpc_port_is_closed_by_default():
    assert load_config("serve", [], {}, [], []).process.grpc_port == -1
    assert load_config("serve", [], {}, ["grpcServerPort=0"], []).process.grpc_port == 0
