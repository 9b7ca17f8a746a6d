"""The output and the exit codes of the commands `capture` and `replay`."""

import json

import pytest
from click.testing import CliRunner

from codec.capture import BlockBuilder, encode_header, encode_index, walk_blocks
from gateway.commands.cli import main
from gateway.shadow.capture.tests.test_replay_plan import record, send
from gateway.shadow.tests.capture_fakes import EPOCH_MS


def run(*arguments, code=0):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def file(tmp_path):
    """A file of two blocks: sends to two topics, then a heartbeat and a send one minute later."""
    data, known = encode_header(EPOCH_MS, "gw", 7), []
    beat = record(34, {}, b"{}", topic="", asked_ms=60_000)
    for records in (
        [send(0, 0), send(0, 10, topic="payments")],
        [beat, send(1, 60_500), send(2, 60_600)],
    ):
        builder = BlockBuilder()
        for each in records:
            builder.add_record(each)
        block_data, block = builder.build(len(data))
        data += block_data
        known.append(block)
    path = tmp_path / "a.rmqcap"
    path.write_bytes(data + encode_index(len(data), known))
    return path


def damage(path):
    first = next(walk_blocks(path.read_bytes()))
    data = bytearray(path.read_bytes())
    data[first.position + 70] ^= 1
    path.write_bytes(data)


def test_info_of_an_intact_file(file):
    facts = json.loads(run("capture", "info", "--json", file).output)
    assert (facts["records"], facts["blocks"], facts["closed"], facts["damage"]) == (5, 2, True, [])
    assert (facts["first"], facts["last"]) == ("2023-11-14T22:13:20.000Z", "2023-11-14T22:14:20.600Z")
    assert facts["codes"] == {"310 SEND_MESSAGE_V2": 4, "34 HEART_BEAT": 1}
    assert facts["topics"] == {"orders": 3, "payments": 1, "": 1}
    text = run("capture", "info", file.parent).output
    assert "5 exchanges in 2 blocks" in text
    assert "4  310 SEND_MESSAGE_V2" in text


def test_info_reports_damage(file):
    damage(file)
    text = run("capture", "info", file, code=3).output
    assert "damage at byte" in text
    assert "does not match its CRC" in text
    result = run("capture", "dump", file, code=3)
    assert len([line for line in result.output.splitlines() if line.startswith("{")]) == 3
    assert "does not match its CRC" in result.output
    assert "does not match its CRC" in run("replay", file, "--dry-run").output


def test_info_of_a_truncated_file(file):
    file.write_bytes(file.read_bytes()[:-300])
    text = run("capture", "info", file, code=3).output
    assert "not closed" in text
    assert "torn" in text
    file.write_bytes(b"")
    assert "not a capture file" in run("capture", "info", file, code=3).output


def dump_lines(*arguments):
    return [json.loads(line) for line in run("capture", "dump", *arguments).output.splitlines()]


def test_dump_prints_a_line_for_each_exchange(file):
    found = dump_lines(file)
    assert [(each["code"], each["topic"]) for each in found] == [
        (310, "orders"), (310, "payments"), (34, ""), (310, "orders"), (310, "orders"),
    ]  # fmt: skip
    assert found[0]["request"]["fields"]["b"] == "orders"
    assert found[0]["request"]["body_bytes"] == 1
    assert "body" not in found[0]["request"]
    assert found[0]["answer"]["fields"]["queueOffset"] == "0"
    assert dump_lines(file, "--bodies")[0]["request"]["body"] == "MA=="
    assert len(dump_lines(file, "--topics", "payments,other")) == 1
    assert len(dump_lines(file, "--codes", "34")) == 1
    assert len(dump_lines(file, "--from", "2023-11-14T22:14:20.500Z")) == 2
    assert len(dump_lines(file, "--until", "2023-11-14T22:14:00")) == 2
    assert len(dump_lines(file, "--until", str(EPOCH_MS + 1))) == 1


def test_dry_run_prints_the_plan(file):
    text = run("replay", file, "--dry-run", "--speed", "2x").output
    assert "4  310 SEND_MESSAGE_V2" in text
    assert "1  skipped  34 HEART_BEAT: would make the groups look active" in text
    assert "4 requests" in text
    assert "about 30.3 s" in text
    assert "about 0.0 s" in run("replay", file, "--dry-run", "--speed", "max").output
    assert "3 requests" in run("replay", file, "--dry-run", "--topics", "orders").output
    assert "0 requests" in run("replay", file, "--dry-run", "--codes", "10").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "pass --to HOST:PORT"),
        (("--dry-run", "--speed", "fast"), "neither max nor a number"),
        (("--dry-run", "--speed", "-1x"), "neither max nor a number"),
        (("--dry-run", "--from", "yesterday"), "is not a time"),
        (("--dry-run", "--codes", "SEND"), "is not a request code"),
    ],
)
def test_invalid_options_are_refused(file, arguments, message):
    assert message in run("replay", file, *arguments, code=2).output


def test_unreadable_file_or_unreachable_target_is_reported(file, tmp_path):
    assert "No such file" in run("capture", "info", tmp_path / "none", code=1).output
    text = run("replay", file, "--to", "127.0.0.1:1", code=1).output
    assert "cannot replay" in text
    assert "Traceback" not in text
    assert "host:port" in run("replay", file, "--to", "somewhere", code=2).output


def test_help_names_the_commands():
    text = run("--help").output
    for name in ("capture", "replay", "shadow", "serve"):
        assert name in text
