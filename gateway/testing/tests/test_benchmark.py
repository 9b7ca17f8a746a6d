"""The measurement of starts runs, and names what it measures."""

from gateway.testing.benchmark import main, measure


def test_every_step_is_measured():
    took = measure(2)
    assert took.keys() == {"import", "start", "create a topic", "advance", "reset", "close"}
    assert {name: len(values) for name, values in took.items() if name != "import"} == dict.fromkeys(
        took.keys() - {"import"}, 2
    )


def test_table_is_printed(capsys):
    main(["--rounds", "1"])
    assert "start  " in capsys.readouterr().out
