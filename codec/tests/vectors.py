"""Test vectors that the official 5.4.0 code wrote and read.

A throw-away Java program on the official jars' class path
filled data/vectors.json through MessageExtEncoder.encode and MessageDecoder.decode (messages; the
physical offset was patched in, as an append does), MessageDecoder.encodeMessages (batch),
createMessageId, MessageClientIDSetter, String.hashCode, string2messageProperties,
RemotingCommand.encode and decode under both serialise types (frames), and
RemotingSerializable.encode beside fastjson 1.2.83 (bodies; names ending in 1 are fastjson 1).
"""

import json
from pathlib import Path
from typing import Any

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text())
