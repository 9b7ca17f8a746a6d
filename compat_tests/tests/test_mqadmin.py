"""The commands of mqadmin, the masks of what they print, and the lists that it is compared with."""

from pathlib import Path

from compat_tests.mqadmin.commands import COMMANDS, AdminCommand
from compat_tests.mqadmin.printed_text import mask_output
from compat_tests.mqadmin.recording import read_deviations, read_recording, read_unserved_commands

README = Path(__file__).parents[2] / "README.md"
PLACES = {"broker": "127.0.0.1:10911", "namesrv": "127.0.0.1:9876", "dir": "/tmp/x"}


def test_every_command_has_an_id_of_its_own_and_is_recorded() -> None:
    ids = [command.id for command in COMMANDS]
    assert len(ids) == len(set(ids)) > 100
    assert list(read_recording()) == ids


def test_every_deviation_is_about_a_command_and_has_a_reason() -> None:
    deviations = read_deviations()
    assert deviations.keys() <= {command.id for command in COMMANDS}
    assert all(len(reason) > 20 for reason in deviations.values())


def test_readme_says_how_many_commands_work() -> None:
    names = {command.name for command in COMMANDS}
    unserved = read_unserved_commands()
    assert unserved < names
    text = " ".join(README.read_text("utf-8").split())
    assert f"{len(names - unserved)} of the {len(names)} `mqadmin` commands of 5.4.0" in text


def test_times_addresses_and_widths_are_masked() -> None:
    text = (
        "to 127.0.0.1:10911 from   10.0.0.5:41000\n"
        "at 2026-11-25 13:00:01,123\n"
        "\tat org.example.Tool.run(Tool.java:1)\n"
        "\t... 12 more\n"
        "stored 1795615200000 as 53985922DA2C4F0C8644D5DDF353F7DB in /tmp/x/a.json\n"
    )
    assert mask_output(text, AdminCommand("a"), PLACES) == [
        "to BROKER from ADDRESS",
        "at TIME",
        "stored TIME as ID in DIR/a.json",
    ]


def test_counted_selected_and_unordered_lines() -> None:
    text = "b: 0.25 of 17\na: -1 1.2E-4\nother: 5\n"
    assert mask_output(text, AdminCommand("a", is_counted=True), {}) == ["b: N of N", "a: N N", "other: N"]
    assert mask_output(text, AdminCommand("a", only="^[ab]", is_unordered=True), {}) == [
        "a: -1 1.2E-4",
        "b: 0.25 of 17",
    ]
    assert mask_output(text, AdminCommand("a", names_only=True), {}) == ["b", "a", "other"]
