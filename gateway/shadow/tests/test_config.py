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
    config = load_config(file, ["listen.namesrv_port=0", "listen.advertise=gw.example", "listen.vip=true"])
    assert config.primary.namesrv == ["10.0.0.1:9876"]
    assert (config.listen.broker_port, config.listen.namesrv_port) == (20911, 0)
    assert (config.listen.advertise, config.listen.vip) == ("gw.example", True)


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
