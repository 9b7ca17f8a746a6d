"""Files, environment and flags in their order; what is unknown, unsupported or wrong."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import sources
from gateway.config.keys import values_of
from gateway.config.process import BrokerConfig, NamesrvConfig, ProxyConfig
from gateway.config.replication import Role
from gateway.config.sources import ConfigError, SourceValue, load_config, nearest_key, resolve_key
from gateway.config.sources import Role as ProcessRole


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


def test_masters_and_their_slaves(tmp_path: Path) -> None:
    sets = ["brokerReplicas=2", "brokers=2", f"storePathRootDir={tmp_path}", "brokerRole=SYNC_MASTER"]
    config = load_config("serve", sets=sets)
    assert config.process.processes
    rows = [
        (each.replica_name, each.broker_name, each.replication.broker_role, each.listen_port)
        for each in config.brokers
    ]
    assert rows == [
        ("broker-a", "broker-a", "SYNC_MASTER", 10911),
        ("broker-b", "broker-b", "SYNC_MASTER", 10921),
        ("broker-a/1", "broker-a", "SLAVE", 10931),
        ("broker-b/1", "broker-b", "SLAVE", 10941),
    ]
    assert [each.store.store_path_root_dir for each in config.brokers] == [
        f"{tmp_path}/broker-a",
        f"{tmp_path}/broker-b",
        f"{tmp_path}/broker-a-slave-1",
        f"{tmp_path}/broker-b-slave-1",
    ]
    free = load_config("serve", sets=["brokerReplicas=2", "listenPort=0"])
    assert [each.listen_port for each in free.brokers] == [0, 0]


@pytest.mark.parametrize(
    ("role", "sets", "reason"),
    [
        ("broker", [], "needs `serve`"),
        ("namesrv", [], "needs `serve`"),
        ("serve", ["memoryStore=true"], "needs stores on disk"),
        ("serve", ["storePathCommitLog=/log"], "a commit log of its own"),
        ("serve", ["brokerRole=SLAVE", "brokerId=1"], "starts masters and their slaves"),
        ("proxy", ["namesrvAddr=h:1"], "needs `serve`"),
    ],
)
def test_replicas_that_cannot_be_started_are_refused(role: ProcessRole, sets: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_config(role, sets=["brokerReplicas=2", *sets])


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
        (["brokerId=1"], "--set brokerId: brokerId=1 asks for a replica.*or brokerId=0"),
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
    path = written(tmp_path / "broker.conf", "totalReplicas=1\nfileReservedTim=3\nzzzzzz=1\n")
    notices = load_config("serve", [path], {}, ["totalReplicas=1"] * 2).notices
    assert len(notices) == 4
    assert notices[0].startswith(f"{path}:1: totalReplicas belongs to automatic failover")
    assert notices[1] == f"{path}:2: unknown key fileReservedTim; did you mean fileReservedTime?"
    assert notices[2] == f"{path}:3: unknown key zzzzzz"
    assert notices[3].startswith("--set totalReplicas: totalReplicas belongs to automatic failover")


def test_a_server_that_is_tried_out_stays_on_this_machine_and_out_of_official_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command of the README opened the store of an official broker, for everybody in the network."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    config = load_config("serve")
    assert config.host == "127.0.0.1"
    assert config.brokers[0].store.store_path_root_dir == f"{home}/rocketmq-gateway/store"
    assert config.namesrv is not None
    assert config.namesrv.kv_config_path == f"{home}/rocketmq-gateway/namesrv/kvConfig.json"
    assert not config.notices
    (home / "store" / "commitlog").mkdir(parents=True)
    (notice,) = load_config("serve").notices
    assert notice.endswith("holds a store that is not opened. Pass --store ~/store to continue it")
    path = written(tmp_path / "broker.conf", "storePathRootDir=~/store\nbindAddress=::\n")
    config = load_config("serve", [path])
    assert (config.host, config.brokers[0].store.store_path_root_dir) == ("::", f"{home}/store")
    assert not config.notices


def test_servers_of_clusters_listen_on_all_addresses() -> None:
    assert load_config("namesrv").host == "0.0.0.0"
    assert load_config("broker", sets=["namesrvAddr=h:1"]).host == "0.0.0.0"
    assert load_config("broker", sets=["bindAddress=10.0.0.1"]).host == "10.0.0.1"


@pytest.mark.parametrize("setting", ["brokerIP1=10.0.0.1", "namesrvAddr=127.0.0.1:1;10.0.0.1:9876"])
def test_sending_others_to_a_loopback_listener_warns(setting: str) -> None:
    (notice,) = load_config("serve", sets=[setting]).notices
    assert notice.endswith("`serve` listens on loopback only. Pass --host 0.0.0.0 to serve other machines")
    assert not load_config("serve", sets=[setting, "bindAddress=0.0.0.0"]).notices
    assert not load_config("serve", sets=["brokerIP1=127.0.0.1", "namesrvAddr=localhost:1"]).notices


def test_serve_does_not_register_where_a_file_says(tmp_path: Path) -> None:
    """A laptop that served a production broker's file took the route of production."""
    path = written(tmp_path / "broker.conf", "namesrvAddr=prod:9876; prod2:9876\n")
    config = load_config("serve", [path])
    assert config.brokers[0].namesrv_addr == ""
    (notice,) = config.notices
    assert notice.startswith(f"{path}:1: namesrvAddr=prod:9876; prod2:9876 is ignored")
    assert notice.endswith('--register-at "prod:9876; prod2:9876"')
    assert load_config("broker", [path]).brokers[0].namesrv_addr == "prod:9876;prod2:9876"
    assert load_config("serve", [path], sets=["namesrvAddr=h:1"]).brokers[0].namesrv_addr == "h:1"
    variable = {"RMQ_GATEWAY_NAMESRV_ADDR": "h:1"}
    assert load_config("serve", [path], variable).brokers[0].namesrv_addr == "h:1"


def test_serve_does_not_register_where_the_address_server_of_a_file_says(tmp_path: Path) -> None:
    text = "fetchNamesrvAddrByAddressServer=true\nrmqAddressServerDomain=lists:80\n"
    path = written(tmp_path / "broker.conf", text)
    config = load_config("serve", [path])
    assert config.brokers[0].address_server == ""
    (notice,) = config.notices
    assert notice.startswith(f"{path}:1: fetchNamesrvAddrByAddressServer=true is ignored")
    assert notice.endswith("--set fetchNamesrvAddrByAddressServer=true")
    url = "http://lists:80/rocketmq/nsaddr"
    forced = load_config("serve", [path], sets=["fetchNamesrvAddrByAddressServer=true"])
    assert forced.brokers[0].address_server == url
    broker = load_config("broker", [path])
    assert broker.brokers[0].address_server == url
    assert not broker.notices, "clients find the broker through the namesrvs of the list"
    off = written(tmp_path / "off.conf", "fetchNamesrvAddrByAddressServer=false\n")
    assert not load_config("serve", [off]).notices


def test_namesrv_addr_wins_over_the_address_server(tmp_path: Path) -> None:
    path = written(tmp_path / "broker.conf", "namesrvAddr=a:1\nfetchNamesrvAddrByAddressServer=true\n")
    assert load_config("broker", [path]).brokers[0].address_server == ""


@pytest.mark.parametrize(
    "line",
    ["rmqAddressServerDomain=http://lists/", "rmqAddressServerSubGroup=a b", "rmqAddressServerDomain= "],
)
def test_keys_of_the_address_server_are_checked_only_if_it_is_asked(line: str, tmp_path: Path) -> None:
    name = line.partition("=")[0]
    switch = "fetchNamesrvAddrByAddressServer=true"
    path = written(tmp_path / "broker.conf", f"namesrvAddr=a:1\n{line}\n{switch}\n")
    (notice,) = load_config("broker", [path]).notices
    assert notice.startswith(f"{path}:2: {name}")
    assert "no effect" in notice
    default = load_config("broker").brokers[0].namesrv_list
    assert load_config("broker", [path]).brokers[0].namesrv_list == replace(default, uses_address_server=True)
    assert any(name in text for text in load_config("serve", [path]).notices)
    if line.strip().endswith("="):
        return  # An empty line of a file leaves the default in any case.
    alone = written(tmp_path / "alone.conf", f"{line}\n")
    (notice,) = [text for text in load_config("broker", [alone]).notices if name in text]
    assert "no address server is asked" in notice
    for role, sets in (("broker", [switch]), ("serve", [switch])):
        with pytest.raises(ConfigError, match=name):
            load_config(role, [alone], sets=sets)
    with pytest.raises(ConfigError, match=name):
        load_config("broker", [alone], {"RMQ_GATEWAY_FETCH_NAMESRV_ADDR_BY_ADDRESS_SERVER": "true"})
    assert load_config("broker", [path], sets=["fetchNamesrvAddrByAddressServer=false"])


def test_a_list_of_namesrvs_without_a_port_to_serve_it_is_told() -> None:
    assert load_config("serve", sets=["addressServerList=auto; b:1;", "httpPort=0"]).notices == ()
    (notice,) = load_config("serve", sets=["addressServerList=auto;b:1"]).notices
    assert "set httpPort" in notice
    with pytest.raises(ConfigError, match="addressServerList"):
        load_config("serve", sets=["addressServerList=b"])


@pytest.mark.parametrize(
    "line",
    [
        "enableDLegerCommitLog=true",
        "enableRemoteEscape=true",
        "storeType=defaultRocksDB",
        "timerRocksDBEnable=true",
        "transRocksDBEnable=true",
    ],
)
def test_a_setting_that_counts_on_what_is_not_served_stops_the_start(line: str, tmp_path: Path) -> None:
    """They were warnings, and a single master started where its owner counted on replicas."""
    name, _, text = line.partition("=")
    path = written(tmp_path / "broker.conf", f"# official\n{line}\n")
    with pytest.raises(
        ConfigError, match=rf"broker\.conf:2: {name}={text} asks for .*Set {name}=\S+, in the"
    ):
        load_config("serve", [path])
    with pytest.raises(ConfigError, match=f"--set {name}: {name}={text} asks for"):
        load_config("broker", sets=[line])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("brokerRole=SLAVE", r":1: brokerRole=SLAVE needs a brokerId of its own. Set brokerId=1"),
        ("brokerRole=SLAVE\nbrokerId=0", ":1: brokerRole=SLAVE needs a brokerId"),
        ("brokerRole=SLAVE\nbrokerId=1\nbrokers=2", "Start each slave as a process of its own"),
        ("brokerId=1", r":1: brokerId=1 asks for a replica. Set brokerRole=SLAVE .* or brokerId=0"),
        ("brokerRole=SYNC_MASTER\nbrokerId=2", ":2: brokerId=2 asks for a replica"),
        ("brokerId=-1", r'brokerId: invalid value "-1" .expected a whole number, at least 0'),
        ("brokerRole=MASTER", 'expected "ASYNC_MASTER", "SYNC_MASTER" or "SLAVE"'),
        ("haMasterAddress=somewhere", "haMasterAddress: invalid value"),
        (
            "brokerRole=SYNC_MASTER\nstagedPublish=true",
            "stagedPublish=true does not go with brokerRole=SYNC",
        ),
        (
            "stagedPublish=true\nbrokerRole=SLAVE\nbrokerId=1",
            ":1: stagedPublish=true does not go with",
        ),
        ("listenPort=10911\nhaListenPort=10911", "port 10911 is configured for both"),
    ],
)
def test_a_role_that_does_not_fit_stops_the_start(lines: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "broker.conf", f"{lines}\n")
    with pytest.raises(ConfigError, match=message):
        load_config("broker", [path])


def test_a_broker_under_a_controller_needs_no_role() -> None:
    """The lines of an official file; the controller decides role and id."""
    under = ["enableControllerMode=true", "controllerAddr=10.0.0.1:9878;10.0.0.2:9878;", "brokerId=-1"]
    for role in ("brokerRole=SLAVE", "brokerRole=SYNC_MASTER"):
        (broker,) = load_config("broker", sets=[*under, role]).brokers
        assert broker.replication.enable_controller_mode
        assert (broker.broker_id, broker.controlled) == (-1, None)
    assert broker.replication.controller_addr == "10.0.0.1:9878;10.0.0.2:9878"
    for value in ("", "10.0.0.1"):
        with pytest.raises(ConfigError, match="controllerAddr"):
            load_config("broker", sets=["enableControllerMode=true", f"controllerAddr={value}"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stagedPublish=true", "stagedPublish=true does not go with enableControllerMode=true"),
        ("enableSlaveActingMaster=true", "Leave out enableSlaveActingMaster"),
        ("haMasterAddress=h:10912", "Leave out haMasterAddress"),
        ("brokerReplicas=2", "Start each replica under a controller by itself"),
        ("fetchControllerAddrByDnsLookup=true", "Name one host in controllerAddr, not a:1;b:1"),
    ],
)
def test_what_a_controller_could_not_decide_stops_the_start(line: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "broker.conf", f"enableControllerMode=true\ncontrollerAddr=a:1;b:1\n{line}\n")
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config("serve", [path])


def test_replication_roles() -> None:
    def broker(*sets: str) -> BrokerConfig:
        (config,) = load_config("broker", sets=sets).brokers
        return config

    assert (broker().role, broker().replication.is_sync_master) == (Role.MASTER, False)
    sync = broker("brokerRole=SYNC_MASTER")
    assert (sync.role, sync.replication.is_sync_master, sync.replication.needed_replicas) == (
        Role.MASTER,
        True,
        2,
    )
    assert broker("brokerRole=SYNC_MASTER", "inSyncReplicas=1").replication.needed_replicas == 1
    slave = broker("brokerRole=SLAVE", "brokerId=3", "haMasterAddress=h:10912")
    assert (slave.role, slave.broker_id, slave.replication.ha_master_address) == (Role.SLAVE, 3, "h:10912")


INERT_REPLICA_SETTINGS = [
    "duplicationEnable=true",
    "totalReplicas=3",
    "syncMasterFlushOffsetWhenStartup=true",
]
"""Settings that do nothing without a controller in the official broker."""


@pytest.mark.parametrize("line", INERT_REPLICA_SETTINGS)
def test_a_replica_setting_without_effect_for_a_single_master_is_a_notice(line: str, tmp_path: Path) -> None:
    name = line.partition("=")[0]
    path = written(tmp_path / "broker.conf", f"# official\nbrokerRole=ASYNC_MASTER\n{line}\n")
    (notice,) = [text for text in load_config("serve", [path], strict=True).notices if name in text]
    assert notice.startswith(f"{path}:3: {name} ")
    (notice,) = [text for text in load_config("broker", sets=[line]).notices if name in text]
    assert notice.startswith(f"--set {name}: {name} ")


@pytest.mark.parametrize("line", INERT_REPLICA_SETTINGS)
@pytest.mark.parametrize("asking", ["enableDLegerCommitLog=true", "enableRemoteEscape=true"])
def test_a_replica_setting_with_effect_stops_the_start(line: str, asking: str, tmp_path: Path) -> None:
    path = written(tmp_path / "broker.conf", f"{line}\n{asking}\n")
    with pytest.raises(ConfigError, match=rf"broker\.conf:2: {asking} asks for"):
        load_config("serve", [path])


def test_the_command_line_overrules_the_role_in_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "broker.conf", "brokerRole=SLAVE\nbrokerId=1\nenableControllerMode=false\n")
    config = load_config("serve", [path], sets=["brokerRole=ASYNC_MASTER", "brokerId=0"])
    assert config.brokers[0].broker_id == 0


@pytest.mark.parametrize(
    ("text", "addresses"),
    [("h:9876;", "h:9876"), ("a:1; b:2", "a:1;b:2"), (" ;a:1 ;; b:2 ; ", "a:1;b:2"), ("[::1]:1;", "[::1]:1")],
)
def test_separators_and_blanks_around_addresses_do_not_matter(text, addresses, tmp_path: Path) -> None:
    path = written(tmp_path / "broker.conf", f"namesrvAddr={text}\n")
    config = load_config("broker", [path])
    assert config.brokers[0].namesrv_addr == addresses
    assert not config.notices


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("a:1,b:2", 'Separate addresses with ";"'),
        ("http://a:1", "Leave out the scheme"),
        ("a:1 # ours", "a comment needs a line of its own"),
    ],
)
def test_a_wrong_address_says_what_is_probably_wrong(value: str, hint: str, tmp_path: Path) -> None:
    path = written(tmp_path / "broker.conf", f"namesrvAddr={value}\n")
    with pytest.raises(ConfigError, match=hint):
        load_config("broker", [path])


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("diskMaxUsedSpaceRatio=100", "95"),
        ("diskMaxUsedSpaceRatio=98", "95"),
        ("diskMaxUsedSpaceRatio=5", "10"),
        ("diskSpaceWarningLevelRatio=100", "99"),
        ("diskSpaceCleanForciblyRatio=100", "99"),
        ("registerNameServerPeriod=5000", "10000"),
        ("registerNameServerPeriod=120000", "60000"),
        ("timerMaxDelaySec=63072000", "31536000"),
        ("maxTransferCountOnMessageInMemory=100000", "10000"),
        ("fileReservedTime=0", "1"),
    ],
)
def test_a_number_out_of_range_is_clamped_with_a_notice(line: str, value: str, tmp_path: Path) -> None:
    """Public examples have diskMaxUsedSpaceRatio=100, for which the official server uses 95."""
    path = written(tmp_path / "broker.conf", f"{line}\n")
    config = load_config("serve", [path])
    name = line.partition("=")[0]
    assert values_of(config.brokers[0])[name] == value
    assert config.notices == (f"{path}:1: {line} is out of range; {value} is used",)


@pytest.mark.parametrize(
    "line", ["listenPort=65536", "brokerPermission=9", "mappedFileSizeCommitLog=1", "maxIndexNum=1"]
)
def test_ports_and_sizes_of_files_are_not_replaced(line: str, tmp_path: Path) -> None:
    path = written(tmp_path / "broker.conf", f"{line}\n")
    with pytest.raises(ConfigError, match="expected a whole number"):
        load_config("serve", [path])


def test_an_empty_value_in_a_file_leaves_the_default(tmp_path: Path) -> None:
    keys = (
        "storePathRootDir",
        "storePathCommitLog",
        "listenPort",
        "brokerIP1",
        "namesrvAddr",
        "fileReservedTime",
    )
    path = written(tmp_path / "broker.conf", "".join(f"{name}=\n" for name in keys))
    config = load_config("serve", [path])
    assert config.brokers == load_config("serve").brokers
    assert config.notices == tuple(
        f"{path}:{line}: {name} is empty, so it has no effect"
        for line, name in enumerate(keys, 1)
        if name not in ("storePathCommitLog", "namesrvAddr")
    )
    with pytest.raises(ConfigError, match="--set listenPort"):
        load_config("serve", sets=["listenPort="])


def test_a_published_example_starts(tmp_path: Path) -> None:
    """Values as people publish them: blanks at the end, hours with one digit, names of old versions."""
    text = (
        "brokerClusterName = rocketmq-cluster \nbrokerName=broker-a\t\nbrokerId=0 \nlistenPort= 10911\n"
        "brokerIP1=192.168.0.121 \ndeleteWhen=4;16; \nfileReservedTime= 48\nbrokerRole = ASYNC_MASTER\n"
        "flushDiskType = ASYNC_FLUSH\ndefaultTopicQueueNums=4\nautoCreateTopicEnable=TRUE\n"
        "mapedFileSizeConsumeQueue=300000\nsendMessageThreadPoolNums=128\ndiskMaxUsedSpaceRatio=88\n"
        "maxMessageSize=65536\n"
    )
    broker = load_config("serve", [written(tmp_path / "broker.conf", text)]).brokers[0]
    assert (broker.broker_cluster_name, broker.broker_name, broker.broker_ip) == (
        "rocketmq-cluster", "broker-a", "192.168.0.121",
    )  # fmt: skip
    assert (broker.store.delete_when, broker.store.disk_max_used_ratio) == ("4;16", 88)


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
    path = written(tmp_path / "broker.conf", "totalReplicas=1\nflushDisk=SYNC_FLUSH\n")
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
    [("namesrv", []), ("controller", []), ("broker", ["brokerProcesses=true"])],
)
def test_the_grpc_port_needs_brokers_that_it_can_find(role, others):
    with pytest.raises(ConfigError, match="grpcServerPort"):
        load_config(role, [], {}, ["grpcServerPort=8081", *others], [])


@pytest.mark.parametrize("setting", ["brokerProcesses=true", "brokerReplicas=2"])
def test_broker_processes_have_a_grpc_port(setting):
    assert load_config("serve", sets=["grpcServerPort=8081", setting]).process.grpc_port == 8081


def test_a_proxy_serves_the_official_port_in_front_of_the_namesrvs_that_it_is_given():
    config = load_config("proxy", sets=["namesrvAddr=h:1;i:2", "maxMessageSize=1000"])
    assert config.proxy == ProxyConfig("h:1;i:2", 1000)
    assert (config.process.grpc_port, config.host) == (8081, "0.0.0.0")
    assert (config.namesrv, config.brokers, config.controller) == (None, (), None)
    official = load_config("proxy", [], {"NAMESRV_ADDR": "h:3"}, ["grpcServerPort=0"], [])
    assert (official.proxy, official.process.grpc_port) == (ProxyConfig("h:3", 4 << 20), 0)
    assert load_config("serve").proxy is None


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        ([], "needs the addresses of the namesrvs"),
        (["namesrvAddr=;"], "needs the addresses of the namesrvs"),
        (["namesrvAddr=h:1", "grpcServerPort=-1"], "serves this port only"),
        (["namesrvAddr=h:1", "authenticationEnabled=true"], "innerClientAuthenticationCredentials"),
        (["namesrvAddr=h:1", "controlPort=0", "memoryStore=true"], "for tests"),
    ],
)
def test_a_proxy_that_could_not_work_is_refused(sets, reason):
    with pytest.raises(ConfigError, match=reason):
        load_config("proxy", sets=sets)
    keys = 'innerClientAuthenticationCredentials={"accessKey":"a","secretKey":"s"}'
    assert load_config("proxy", sets=["namesrvAddr=h:1", "authenticationEnabled=true", keys]).auth.is_enabled


def test_servers_for_tests_have_a_grpc_port():
    process = load_config("serve", sets=["grpcServerPort=0", "controlPort=0", "memoryStore=true"]).process
    assert (process.grpc_port, process.control_port) == (0, 0)


def test_required_extension_that_is_missing_is_an_error(monkeypatch):
    monkeypatch.setattr(sources, "native_absence", lambda: "not built")
    text = r"nativeSends=require: the extension rocketmq_native cannot be used \(not built\)"
    for role in ("serve", "broker"):
        with pytest.raises(ConfigError, match=text):
            load_config(role, sets=["nativeSends=require"])
        assert load_config(role, sets=["nativeSends=auto"]).brokers[0].flow.native_sends == "auto"
    load_config("namesrv", sets=["nativeSends=require"])


def test_required_extension_that_is_there_is_accepted(monkeypatch):
    monkeypatch.setattr(sources, "native_absence", lambda: "")
    assert load_config("serve", sets=["nativeSends=require"]).brokers[0].flow.native_sends == "require"
    with pytest.raises(ConfigError, match="nativeSends"):
        load_config("serve", sets=["nativeSends=on"])


def test_the_grpc_port_is_closed_by_default():
    assert load_config("serve", [], {}, [], []).process.grpc_port == -1
    assert load_config("serve", [], {}, ["grpcServerPort=0"], []).process.grpc_port == 0


def test_passwords_that_others_can_read_are_named_once(tmp_path: Path) -> None:
    text = 'initAuthenticationUser={"username":"root","password":"x"}\nhttpToken=t\n'
    path = written(tmp_path / "broker.conf", text)
    Path(path).chmod(0o644)
    (notice,) = load_config("serve", [path]).notices
    assert notice == f"{path} has passwords, and other accounts can read it: chmod 600 {path}"
    Path(path).chmod(0o600)
    assert not load_config("serve", [path]).notices
    plain = written(tmp_path / "plain.conf", "httpPort=0\n")
    Path(plain).chmod(0o644)
    assert not load_config("serve", [plain]).notices
