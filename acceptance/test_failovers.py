"""Three brokers of ours lose their master and the leading controller at once; `make failovers` has all faults."""

from contextlib import ExitStack
from pathlib import Path

from acceptance.test_controller import require_etcd
from tools.failovers.faults import FAULTS_BY_NAME
from tools.failovers.rounds import Rounds


def test_nothing_acknowledged_is_lost_with_master_and_controller(tmp_path: Path) -> None:
    require_etcd()
    with ExitStack() as stack:
        rounds = Rounds("ours", "etcd", (), tmp_path, stack)
        result = rounds.run(FAULTS_BY_NAME["master and controller killed"])
    assert result.problems == []
    assert result.elections == 1
    assert result.accepted > 50
    # The lease of the dead controller (5 s), and the look for a free one.
    assert result.writable_s is not None
    assert result.writable_s < 15
