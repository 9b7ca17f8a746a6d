"""Settings of moves: the table `[cutover]`."""

from dataclasses import dataclass

from toolkit.settings import setting


@dataclass(frozen=True, slots=True)
class CutoverSettings:
    """How topics and groups are moved to the target."""

    state_file: str = setting(
        "",
        "File that says how far each move is, replaced at each step; needed for any step. A gateway that was killed "
        "goes on from it.",
        example="~/shadow/moves.json",
    )
    max_lag: int = setting(
        1_000, "Messages that the target may lack when producers are to be switched; more is refused.", low=0
    )
    hold_sends_ms: int = setting(
        2_000,
        "How long sends may wait while their topic is switched; then they go on as before and the step is refused. "
        "Clients give up after 3,000 ms.",
        low=100,
        high=60_000,
    )
    catch_up_ms: int = setting(
        10_000, "How long the target may take to get what the primary had.", low=100, high=3_600_000
    )
    parity_s: int = setting(
        3_600,
        "Messages of the last so many seconds are compared before a topic is CAUGHT_UP, and all since the mirror "
        "lacked one; 0: none.",
        low=0,
    )
    poll_ms: int = setting(50, "How often is looked whether what is waited for has come.", low=1, high=10_000)
