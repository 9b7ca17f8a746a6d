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
        (Side.TARGET, 12, SAME, 10),  # late messages of the primary were consumed there
        (Side.TARGET, 4, SAME, 4),
        (Side.TARGET, 10, OTHER, 25),
        (Side.TARGET, 4, OTHER, None),
        (Side.PRIMARY, 25, OTHER, 10),
        (Side.PRIMARY, 24, OTHER, None),
        (Side.TARGET, 10, None, 30),  # a retry topic
    ],
)
def test_where_a_group_goes_on(goal, offset, ends, wanted):
    assert offset_after_switch(goal, offset, HERE, THERE, ends) == wanted


def test_a_queue_without_an_offset():
    assert offset_after_switch(Side.TARGET, None, QueueRange(5, 5), THERE, SAME) == 3
    assert offset_after_switch(Side.TARGET, None, HERE, THERE, SAME) is None
