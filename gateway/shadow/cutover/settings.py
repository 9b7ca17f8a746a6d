"""Settings of the cut-over: the table `[cutover]`."""

from dataclasses import dataclass

from toolkit.settings import setting


@dataclass(frozen=True, slots=True)
class CutoverSettings:
    """Files, limits and times of moves."""

    state_file: str = setting(
        "",
        "File with the state of every move, replaced at each step and required for any step. After a restart the "
        "gateway continues from it.",
        example="~/shadow/moves.json",
    )
    max_lag: int = setting(
        1_000, "Maximum number of messages that the target may lack when producers are switched.", low=0
    )
    hold_sends_ms: int = setting(
        2_000,
        "Maximum time that sends wait while their topic is switched; after it they continue as before and the step is "
        "refused. Clients give up after 3,000 ms.",
        low=100,
        high=60_000,
    )
    catch_up_ms: int = setting(
        10_000,
        "Maximum time for the target to receive the messages that the primary has at the beginning of the check.",
        low=100,
        high=3_600_000,
    )
    parity_s: int = setting(
        3_600,
        "Age of the messages whose content is compared before a topic is CAUGHT_UP; messages since the mirror first "
        "lacked one are compared too. 0: no comparison.",
        low=0,
    )
    poll_ms: int = setting(
        50, "Time between two attempts of a check that waits for a condition.", low=1, high=10_000
    )
