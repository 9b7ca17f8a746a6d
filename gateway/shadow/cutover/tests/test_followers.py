import pytest

from gateway.shadow.clusters.cluster_pair import Range
from gateway.shadow.cutover.followers import goes_on_at
from gateway.shadow.cutover.machine import Ends
from gateway.shadow.traffic.exchange import Side

HERE, THERE = Range(0, 10), Range(3, 30)
SAME, OTHER = Ends(10, 10), Ends(primary=10, target=25)


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
    assert goes_on_at(goal, offset, HERE, THERE, ends) == wanted


def test_a_queue_without_an_offset():
    assert goes_on_at(Side.TARGET, None, Range(5, 5), THERE, SAME) == 3
    assert goes_on_at(Side.TARGET, None, HERE, THERE, SAME) is None
