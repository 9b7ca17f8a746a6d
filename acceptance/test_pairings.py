"""Masters and slaves of two kinds through kills, a silent link, and a takeover; `make pairings` runs all kinds."""

from pathlib import Path

import pytest

from acceptance.test_cluster import available
from tools.pairings.members import OFFICIAL, OURS, BrokerKind
from tools.pairings.network import open_network
from tools.pairings.story import run_pairing

pytestmark = pytest.mark.both_servers


@pytest.mark.parametrize(
    ("master", "slave"),
    [(OURS, OURS), (OFFICIAL, OURS), (OURS, OFFICIAL)],
    ids=["ours-ours", "official-ours", "ours-official"],
)
def test_a_pairing_keeps_the_laws_of_replication(
    tmp_path: Path, master: BrokerKind, slave: BrokerKind
) -> None:
    with available():
        row = run_pairing(master, slave, open_network(), tmp_path, is_short=True)
    assert not row.failure
    assert row.cells["takeover"].endswith("nothing lost")
    assert row.cells["old master back"] in ("cut, in step", "nothing to cut, in step", "does not follow")
    assert row.cells["other kind opens it"].endswith("nothing lost")
