"""Configuration from files and --set; errors name the setting."""

import pytest

from gateway.shadow.config import load_config
from toolkit.settings import SettingsError

PRIMARY = 'primary.namesrv=["10.0.0.1:9876"]'


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "shadow.toml"
    path.write_text('[primary]\nnamesrv = ["10.0.0.1:9876"]\n[listen]\nbroker_port = 20911\n')
    return str(path)


def test_set_overrides_the_file(file):
    config = load_config(file, ["listen.namesrv_port=0", "listen.advertise=gw.example", "listen.vip=false"])
    assert config.primary.namesrv == ["10.0.0.1:9876"]
    assert (config.listen.broker_port, config.listen.namesrv_port) == (20911, 0)
    assert (config.listen.advertise, config.listen.vip) == ("gw.example", False)


def test_no_file_is_needed():
    config = load_config(None, [PRIMARY, 'listen.ports={"10.0.0.2:10911" = 7}'])
    assert config.listen.ports == {"10.0.0.2:10911": 7}


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        (
            [],
            'No configuration. Pass one with -c shadow.toml; "rmq-gateway shadow example" prints a template.',
        ),
        (["primary.namesrv=[]"], "primary.namesrv: at least one address"),
        (['primary.namesrv=["x"]'], "primary.namesrv: 'x' is not host:port"),
        ([PRIMARY, "listen.prot=1"], '[listen]: unknown setting "prot"; did you mean "ports"?'),
        (
            [PRIMARY, "listen.namesrv_port=65536"],
            "listen.namesrv_port: invalid value 65536 (expected a whole number from 0 to 65535)",
        ),
        ([PRIMARY, "listen.grpc_forward_to=proxy"], "listen.grpc_forward_to: 'proxy' is not host:port"),
        ([PRIMARY, "listen.grpc_forward_to=10.0.0.3:8081"], "set listen.grpc_port as well"),
        (
            [
                *(PRIMARY, "listen.grpc_port=8081", "listen.grpc_forward_to=10.0.0.3:8081"),
                'target.namesrv=["10.0.0.2:9876"]',
            ],
            "listen.grpc_forward_to: calls that the primary's Proxy answers cannot be mirrored or moved",
        ),
        ([PRIMARY, "listen.vip=1"], "listen.vip: invalid value 1 (expected true or false)"),
        ([PRIMARY, "listen"], "expected table.key=value"),
        ([PRIMARY, "listen.vip.x=1", "listen.vip.x.y=2"], "listen.vip.x is not a table"),
    ],
)
def test_mistakes_name_their_setting(sets, reason):
    with pytest.raises(SettingsError) as refused:
        load_config(None, sets)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ('{topics = ["a"], sample = 0.5, sample_by = "key"}', 'sample_by must be "queue"'),
        ('{clients = ["10.*"]}', "clients and codes cannot select single messages"),
        ('{codes = ["SEND_MESSAGE"]}', "clients and codes cannot select single messages"),
    ],
)
def test_rules_that_split_queues_are_refused_for_our_target(rule, reason):
    sets = [PRIMARY, 'target.namesrv=["10.0.1.1:9876"]', f'mirror=[{{mode = "off"}}, {rule}]']
    with pytest.raises(SettingsError) as refused:
        load_config(None, [*sets, "target.kind=ours"])
    assert str(refused.value).endswith(f'mirror[1]: a target of kind "ours" receives whole queues: {reason}')
    load_config(None, [*sets, "target.kind=any"])


def test_unreadable_files(tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text("[primary\n")
    for path in (broken, tmp_path / "none.toml"):
        with pytest.raises(SettingsError, match=path.name):
            load_config(str(path))


OLD_NAMES = [
    ("kept.queues=7", "kept", "replication", lambda config: config.replication.queues),
    (
        "listen.kept_bytes=4097",
        "listen.kept_bytes",
        "listen.buffered_bytes",
        lambda config: config.listen.buffered_bytes,
    ),
    (
        "listen={kept_total_bytes=1048577}",
        "listen.kept_total_bytes",
        "listen.buffered_total_bytes",
        lambda config: config.listen.buffered_total_bytes,
    ),
    (
        "compare.questions=0.5",
        "compare.questions",
        "compare.repeated_reads",
        lambda config: config.compare.repeated_reads,
    ),
    (
        "compare.questions_per_s=2.5",
        "compare.questions_per_s",
        "compare.repeated_reads_per_s",
        lambda config: config.compare.repeated_reads_per_s,
    ),
]


@pytest.mark.parametrize(("override", "old", "new", "read"), OLD_NAMES)
@pytest.mark.parametrize("in_file", [True, False])
def test_old_names_are_accepted_with_one_warning(tmp_path, caplog, override, old, new, read, in_file):
    path = tmp_path / "shadow.toml"
    path.write_text(f"{override}\n{PRIMARY}\n")
    config = load_config(str(path)) if in_file else load_config(None, [PRIMARY, override])
    assert read(config) == type(read(config))(override.rstrip("}").rpartition("=")[2])
    assert [(entry.message, entry.setting, entry.use) for entry in caplog.records] == [
        ("renamed setting", old, new)
    ]


def test_old_and_new_names_override_each_other(tmp_path, caplog):
    path = tmp_path / "shadow.toml"
    path.write_text(f"{PRIMARY}\n[kept]\nqueues = 5\nwait_ms = 100\n")
    config = load_config(str(path), ["replication.queues=6", "kept.wait_ms=200", "kept.wait_ms=300"])
    assert (config.replication.queues, config.replication.wait_ms) == (6, 300)
    assert len(caplog.messages) == 1


def test_a_file_with_both_names_is_refused(tmp_path):
    path = tmp_path / "shadow.toml"
    path.write_text(f"{PRIMARY}\n[listen]\nkept_bytes = 5000\nbuffered_bytes = 5000\n")
    with pytest.raises(
        SettingsError, match=r"listen\.kept_bytes is the old name of listen\.buffered_bytes: set only"
    ):
        load_config(str(path))
