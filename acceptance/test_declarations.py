"""The recorded declarations of the official protocol are those of the jars; ``--record`` renews the recording.

`remoting/tests/test_requests.py` compares our declarations with the recording.
"""

import pytest

from acceptance.declarations.recording import describe_all, read_recording, write_recording
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail


def test_the_recording_is_what_the_jars_declare(request: pytest.FixtureRequest) -> None:
    try:
        found = describe_all()
    except Unavailable as missing:
        skip_or_fail(str(missing))
    if request.config.getoption("--record"):
        write_recording(found)
    assert found == read_recording()
