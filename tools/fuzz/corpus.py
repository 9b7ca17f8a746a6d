"""The corpus: requests that once did harm, one file each, sent again at the beginning of every campaign.

A case is a JSON object: ``what`` it did, ``against`` which targets it is sent, the ``port`` (broker or namesrv), and
its ``frames``. A frame is a request (``code`` and, if need be, ``ext``, ``body`` as text or ``body_base64``, ``flag``,
``opaque``, ``binary``) or raw bytes (``hex``). ``times`` repeats a frame, ``repeat`` = [text, count] is appended to its
body. All frames go over one connection, which then closes in order. Harm that cannot be told in frames is an ordinary
test beside the code.
"""

import base64
import json
from pathlib import Path
from typing import Any, Final

from tools.fuzz.frame_encoding import encode_request
from tools.fuzz.valid_requests import FuzzRequest
from tools.fuzz.walks import Ending, Port, Walk, WalkFrame, expected_answer

CORPUS: Final = Path(__file__).parent / "corpus"
FIRST_OPAQUE: Final = 100


def load_corpus(against: str) -> list[tuple[str, Walk]]:
    """Return the cases for a target as walks with negative numbers, each with the name of its file."""
    cases = [(path.stem, json.loads(path.read_text())) for path in sorted(CORPUS.glob("*.json"))]
    return [
        (name, build_case(case, -number))
        for number, (name, case) in enumerate(cases, 1)
        if against in case["against"]
    ]


def build_case(case: dict[str, Any], number: int) -> Walk:
    """Return a case as a walk over one connection of its own."""
    walk = Walk(number, case["what"], Port(case.get("port", "broker")), connections=1, ending=Ending.FINISH)
    for frame in case["frames"]:
        for _ in range(frame.get("times", 1)):
            walk.frames.append(_build_frame(frame, FIRST_OPAQUE + len(walk.frames)))
    if any("hex" in frame for frame in case["frames"]):
        walk.ending = Ending.HALF_CLOSE
    return walk


def _build_frame(frame: dict[str, Any], opaque: int) -> WalkFrame:
    if "hex" in frame:
        return WalkFrame(bytes.fromhex(frame["hex"]))
    body = (
        base64.b64decode(frame["body_base64"]) if "body_base64" in frame else frame.get("body", "").encode()
    )
    text, count = frame.get("repeat", ("", 0))
    request = FuzzRequest(
        frame["code"],
        frame.get("ext", {}),
        body + text.encode() * count,
        flag=frame.get("flag", 0),
        opaque=frame.get("opaque", opaque),
        binary=frame.get("binary", False),
    )
    return WalkFrame(encode_request(request), request.code, request.opaque, expected_answer(request))
