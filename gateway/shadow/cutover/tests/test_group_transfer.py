import pytest

from gateway.shadow.clusters.cluster_pair import QueueRange
from gateway.shadow.cutover.group_transfer import offset_after_switch
from gateway.shadow.cutover.moves import QueueEnds
from gateway.shadow.traffic.exchange import Side

HERE, THERE = QueueRange(0, 10), QueueRange(3, 30)
SAME, OTHER = QueueEnds(10, 10), QueueEnds(primary=10, target=25)


@pytest.mark.parametrize(
    ("goal", "offset", "ends", "wanted"),
    [
        (Side.TARGET, 10, SAME, 10),
        (Side.TARGET, 12, SAME, 10),  # late messages were consumed at the primary
        (Side.TARGET, 4, SAME, 4),
        (Side.TARGET, 10, OTHER, 25),
        (Side.TARGET, 4, OTHER, None),
        (Side.PRIMARY, 25, OTHER, 10),
        (Side.PRIMARY, 24, OTHER, None),
        (Side.TARGET, 10, None, 30),  # a retry topic
    ],
)
def test_offset_after_switch(goal, offset, ends, wanted):
    assert offset_after_switch(goal, offset, HERE, THERE, ends) == wanted


def test_offset_after_switch_without_a_committed_offset():
    assert offset_after_switch(Side.TARGET, None, QueueRange(5, 5), THERE, SAME) == 3
    assert offset_after_switch(Side.TARGET, None, HERE, THERE, SAME) is None
