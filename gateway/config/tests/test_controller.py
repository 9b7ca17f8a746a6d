"""The settings of a controller, alone and in the process of a namesrv."""

from pathlib import Path

import pytest

from gateway.config.controller import ControllerConfig, ControllerPeer
from gateway.config.sources import ConfigError, load_config

OFFICIAL = """
controllerDLegerGroup = group1
controllerDLegerPeers = n0-127.0.0.1:9878;n1-10.0.0.2:9868
controllerDLegerSelfId = n1
controllerStorePath = /srv/controller
enableElectUncleanMaster = false
notifyBrokerRoleChanged = true
controllerType = DLedger
"""


def test_the_official_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "my.conf"
    path.write_text(OFFICIAL + "controllerEtcd = http://e1:2379;http://e2:2379\n")
    config = load_config("controller", [str(path)])
    controller = config.controller
    assert controller is not None
    assert (config.namesrv, config.brokers, config.host) == (None, (), "0.0.0.0")
    assert controller.own_peer() == ControllerPeer("n1", "10.0.0.2", 9868)
    assert [peer.port for peer in controller.all_peers()] == [9878, 9868]
    assert controller.store_path == "/srv/controller"
    assert controller.etcd_urls() == ["http://e1:2379", "http://e2:2379"]
    (notice,) = config.notices
    assert "controllerType" in notice


def test_a_namesrv_has_a_controller_only_if_it_is_asked_for() -> None:
    assert load_config("namesrv").controller is None
    assert load_config("serve").controller is None
    config = load_config("namesrv", sets=["enableControllerInNamesrv=true", "enableElectUncleanMaster=true"])
    assert config.namesrv is not None
    assert config.controller == ControllerConfig(enable_elect_unclean_master=True)


def test_a_namesrv_and_its_controller_share_an_official_key(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("enableControllerInNamesrv=true\nscanNotActiveBrokerInterval=700\n")
    config = load_config("namesrv", [str(path)])
    assert config.namesrv is not None
    assert config.controller is not None
    assert config.namesrv.scan_not_active_broker_interval_ms == 700
    assert config.controller.scan_not_active_broker_interval_ms == 700
    config = load_config("namesrv", [str(path)], sets=["controller.scanNotActiveBrokerInterval=900"])
    assert config.controller is not None
    assert config.controller.scan_not_active_broker_interval_ms == 900


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["controllerDLegerSelfId=n7"], "n7 is not in controllerDLegerPeers"),
        (["controllerDLegerPeers=n0-a:1;n1-b:1"], "share their state through etcd. Set controllerEtcd"),
        (["controllerDLegerPeers=n0-a:1;n0-b:1", "controllerEtcd=http://e:1"], "has an id twice"),
        (["controllerDLegerPeers=127.0.0.1:9878"], "controllerDLegerPeers"),
        (["controllerEtcd=e:2379"], "controllerEtcd"),
        (
            ["controllerEtcd=https://e:1", "controllerEtcdKey=k"],
            "controllerEtcdKey is set, but controllerEtcdCert",
        ),
        (["controllerEtcd=http://e:1", "controllerEtcdCa=ca"], "controllerEtcdCa is set, but no address"),
        (["controllerEtcdCert=c"], "controllerEtcdCert is set, but no address"),
    ],
)
def test_a_group_that_cannot_work_is_refused(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("controller", sets=sets)


def test_the_port_of_the_controller_may_not_be_that_of_the_namesrv() -> None:
    sets = ["enableControllerInNamesrv=true", "controllerDLegerPeers=n0-127.0.0.1:9876"]
    with pytest.raises(ConfigError, match="port 9876 is configured for both"):
        load_config("namesrv", sets=sets)


def test_environment_variables_reach_the_controller() -> None:
    environment = {
        "RMQ_GATEWAY_CONTROLLER_ETCD": "http://e:1",
        "RMQ_GATEWAY_CONTROLLER_SCAN_INACTIVE_MASTER_INTERVAL": "400",
    }
    controller = load_config("controller", environment=environment).controller
    assert controller is not None
    assert (controller.etcd, controller.scan_inactive_master_interval_ms) == ("http://e:1", 400)
