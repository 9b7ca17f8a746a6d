import pytest

from gateway.broker.assembly.saved_role import SavedRole, with_role
from gateway.config.replication import ASYNC_MASTER, SLAVE, SYNC_MASTER, Role
from gateway.tests.configs import broker_config
from storage.files import MemoryFiles

PATH = "/c/brokerRole.json"


def slave_config(**settings):
    return broker_config(**{"broker_role": SLAVE, "broker_id": 1, "ha_master_address": "m:1", **settings})


def test_without_a_file_the_configuration_decides():
    config = slave_config()
    assert SavedRole(MemoryFiles(), "/c", config).apply(config) is config


def test_a_role_given_by_request_survives_a_restart():
    files, config = MemoryFiles(), slave_config()
    SavedRole(files, "/c", config).save(with_role(config, SYNC_MASTER, 0))
    started = SavedRole(files, "/c", config).apply(config)
    assert (started.broker_id, started.replication.broker_role) == (0, SYNC_MASTER)
    assert started.role is Role.MASTER
    assert started.replication.ha_master_address == "m:1"


def test_a_demoted_broker_follows_the_same_master_after_a_restart():
    files, config = MemoryFiles(), broker_config()
    SavedRole(files, "/c", config).save(with_role(config, SLAVE, 3, ha_master_address="new:10912"))
    started = SavedRole(files, "/c", config).apply(config)
    assert (started.broker_id, started.replication.ha_master_address) == (3, "new:10912")


def test_a_changed_configuration_decides_again(caplog):
    files, config = MemoryFiles(), slave_config()
    SavedRole(files, "/c", config).save(with_role(config, ASYNC_MASTER, 0))
    changed = slave_config(broker_id=2)
    assert SavedRole(files, "/c", changed).apply(changed) is changed
    assert "role of the configuration, which has changed" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"configured":{},"role":{"brokerRole":"SLAVE","brokerId":0,"haMasterAddress":""}}',
    ],
)
def test_a_file_that_cannot_be_read_says_what_to_do(content):
    files, config = MemoryFiles(), slave_config()
    files.write_small(PATH, content)
    with pytest.raises(ValueError, match=r"brokerRole\.json cannot be read: .*Delete it"):
        SavedRole(files, "/c", config).apply(config)
