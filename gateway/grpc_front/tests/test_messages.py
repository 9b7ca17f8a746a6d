import subprocess
import sys
from pathlib import Path

import pytest

from gateway.grpc_front import messages

ROOT = Path(__file__).resolve().parents[3]


def test_generated_files_are_current(tmp_path):
    pytest.importorskip("grpc_tools")
    script = ROOT / "scripts" / "generate_grpc_messages.py"
    subprocess.run([sys.executable, script, "--target", tmp_path], check=True, timeout=60)
    for name in ("messages.py", "messages.pyi"):
        assert (tmp_path / name).read_text() == (ROOT / "gateway" / "grpc_front" / name).read_text()


def test_a_message_comes_back_as_it_was():
    sent = messages.Message(topic=messages.Resource(name="orders"), body=b"hello", user_properties={"a": "b"})
    sent.system_properties.born_timestamp.FromMilliseconds(1_700_000_000_123)
    back = messages.Message.FromString(sent.SerializeToString())
    assert back == sent
    assert back.system_properties.born_timestamp.ToMilliseconds() == 1_700_000_000_123


def test_messages_do_not_collide_with_those_of_a_client_library():
    from google.protobuf import descriptor_pool

    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("apache.rocketmq.v2.Message")
