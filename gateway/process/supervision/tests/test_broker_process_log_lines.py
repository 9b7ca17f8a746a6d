"""The output of a broker process as whole lines."""

from random import Random

from gateway.process.supervision.broker_process import MAX_LINE_BYTES, LogLines


def test_lines_are_whole_however_the_output_is_cut() -> None:
    chance = Random(3)
    output = "".join(f"line {number} ünd möre\n" * chance.randrange(4) for number in range(200)) + "the last"
    data = output.encode()
    lines = LogLines()
    seen = []
    while data:
        size = chance.randrange(1, 60)
        seen.append(lines.feed(data[:size]))
        data = data[size:]
    assert all(not text or text.endswith("\n") for text in seen)
    assert "".join(seen) + lines.finish() == output + "\n"
    assert lines.finish() == ""


def test_errors_are_collected_and_not_shown() -> None:
    lines = LogLines()
    shown = (
        lines.feed(b"a\nError: no po") + lines.feed(b"rt\nnot an Error: b\n") + lines.feed(b"Error: second")
    )
    assert shown + lines.finish() == "a\nnot an Error: b\n"
    assert lines.errors == ["no port", "second"]


def test_a_line_without_end_is_cut() -> None:
    lines = LogLines()
    shown = lines.feed(b"short\n" + b"x" * (MAX_LINE_BYTES + 1))
    assert shown == "short\n" + "x" * (MAX_LINE_BYTES + 1) + "\n"
    assert lines.feed(b"y\n") == "y\n"
