"""The table of pairings has a line for each step that was gone through."""

from tools.pairings.cli import PAIRINGS, table
from tools.pairings.story import PairingRow


def test_the_table_shows_every_step_of_every_pairing() -> None:
    rows = [
        PairingRow("ours", "official 5.4.0", {"in step": "5 OK", "takeover": "FAILED"}),
        PairingRow("ours", "ours", {"in step": "7 OK"}),
    ]
    assert table(rows).splitlines() == [
        "| step | ours → official 5.4.0 | ours → ours |",
        "|---|---|---|",
        "| in step | 5 OK | 7 OK |",
        "| takeover | FAILED | - |",
    ]


def test_all_pairings_are_named() -> None:
    assert set(PAIRINGS) == {
        f"{master}/{slave}" for master in ("4.9.7", "5.4.0", "ours") for slave in ("5.4.0", "ours")
    }
