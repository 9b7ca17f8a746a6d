"""One remoting command and its two header serialisations, JSON and binary.

The meaning of codes and header fields is declared in `remoting.requests`; `frames.py` splits byte streams into
frames.

Source: RemotingCommand, RocketMQSerializable, RemotingSerializable, 5.4.0.
"""

import json
import re
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from struct import Struct
from typing import Any

import orjson

from codec.constants import (
    CURRENT_VERSION,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    LANGUAGE_CODES,
    LANGUAGE_NAMES,
    LANGUAGE_OTHER,
    MAX_HEADER_BYTES,
    SERIALIZE_BINARY,
    SERIALIZE_JSON,
)
from codec.errors import FrameError
from codec.header_layouts import HeaderLayoutCache
from codec.native import native_module

Buffer = bytes | bytearray | memoryview
_header_layouts = HeaderLayoutCache()
_loads = orjson.loads
_dumps = orjson.dumps
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_FRAME_HEAD = Struct(">II")
# From this size on, saving a copy is worth creating a view.
_LARGE_BODY_BYTES = 4096
_WORD_AT = Struct(">I").unpack_from
# An unusual JSON header takes 0.2 µs per byte to decode. No client sends one that is longer.
_MAX_UNUSUAL_BYTES = 256 * 1024
_MAX_CACHED_NAME_CHARS = 64
# code, language, version, opaque, flag, remark length
_BINARY_HEAD = Struct(">hBhiii")
_BINARY_MIN_BYTES = _BINARY_HEAD.size + 4
_ONE_LETTER_AT = Struct(">HBI").unpack_from
_LENGTH = Struct(">I")
_LENGTH_AT = _LENGTH.unpack_from
_SPELLED_INT = re.compile("-?[0-9]{1,10}").fullmatch
_VALUE = re.compile(rb"%[bd]")
_LATIN_1 = "".join(map(chr, range(256)))
_ANSWER_START = b'{"extFields":'
_ANSWER_CODE = b',"code":'
_ANSWER_MIDDLE = b'"flag":1,"language":"OTHER","opaque":'
_ANSWER_END = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % CURRENT_VERSION
_ANSWER_BYTES = len(_ANSWER_START) + len(_ANSWER_CODE) + len(_ANSWER_END)


class Command:
    """A request or an answer.

    ``ext`` maps the header's wire names to text, ``remark`` is the text of an answer, ``body`` is opaque here.
    ``binary`` is the serialisation that the header came in, or is to be written in.
    """

    __slots__ = ("binary", "body", "code", "ext", "flag", "language", "opaque", "remark", "version")

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        ext: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        remark: str | None = None,
        language: str = "OTHER",
        version: int = CURRENT_VERSION,
        binary: bool = False,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.ext: dict[str, str] = {} if ext is None else ext
        self.body = body
        self.remark = remark
        self.language = language
        self.version = version
        self.binary = binary

    @property
    def is_response(self) -> bool:
        """True for an answer, False for a request."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """True for a request whose sender expects no answer."""
        return self.flag & FLAG_ONEWAY != 0

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return f"<Command {kind} code={self.code} opaque={self.opaque} body={len(self.body)} bytes>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]


def _find_native_decoder() -> Callable[[Buffer, int, int, int], Command | None] | None:
    module = native_module()
    if module is None:
        return None
    module.prepare_decode_frame(Command, LANGUAGE_NAMES, LANGUAGE_NAMES[LANGUAGE_OTHER])
    decoder: Callable[[Buffer, int, int, int], Command | None] = module.decode_frame
    return decoder


_decode_natively = _find_native_decoder()


def decode_frame(buffer: Buffer, start: int, end: int, max_header_bytes: int = MAX_HEADER_BYTES) -> Command:
    """Decode the command in ``buffer[start:end]``; ``start`` is at the word of serialise type and header length.

    The body is copied. An unknown language becomes "OTHER", an empty remark None; header fields that are null are
    left out. The C extension decodes the usual frames, and leaves the others to the code here.
    Raises FrameError, and no other exception, for anything that is not a command.
    A header without code or opaque, or with null in their place, has code 0 and opaque 0. Deviation: the official
    decoder counts up an opaque of its own instead, which no peer can match with a request either.
    """
    if _decode_natively is not None:
        command = _decode_natively(buffer, start, end, max_header_bytes)
        if command is not None:
            return command
    if not 0 <= start <= end - 4 or end > len(buffer):
        raise FrameError("frame without room for a header length")
    word = _WORD_AT(buffer, start)[0]
    header_at = start + 4
    if word > max_header_bytes:  # Includes binary headers: JSON has type 0.
        return _decode_binary_frame(buffer, header_at, end, word, max_header_bytes)
    header_end = header_at + word
    if header_end > end:
        raise FrameError(f"header of {word} bytes in a frame of {end - start}")
    if end - header_end < _LARGE_BODY_BYTES:
        body = bytes(buffer[header_end:end])
    else:
        body = bytes(memoryview(buffer)[header_end:end])
    try:
        fields = _loads(buffer[header_at:header_end])
        code, opaque, flag = fields["code"], fields["opaque"], fields["flag"]
        language, version, ext = fields["language"], fields["version"], fields["extFields"]
        "".join(ext.values())  # The cheapest check that all of them are text.
        # Without negative numbers the bitwise or of all is in range only if each of them is.
        usual = 0 <= (code | opaque | flag | version) <= _INT_MAX
        if usual and language in LANGUAGE_CODES:
            if "remark" not in fields:
                return Command(code, opaque, flag, ext, body, None, language, version, False)
            remark = fields["remark"]
            if type(remark) is str:
                return Command(code, opaque, flag, ext, body, remark or None, language, version, False)
    except orjson.JSONDecodeError as error:
        raise FrameError(f"header is not JSON: {error}") from error
    except (KeyError, TypeError, AttributeError, IndexError):
        pass  # Unusual but possibly valid: the careful decoder below decides.
    return _decode_unusual_json(bytes(buffer[header_at:header_end]), body)


def _decode_unusual_json(header: bytes, body: bytes) -> Command:
    """Decode a header that lacks fields, or spells them as other JSON types than most clients do."""
    if len(header) > _MAX_UNUSUAL_BYTES:
        raise FrameError(f"header of {len(header)} bytes without all the usual fields and types")
    try:
        # Keep numbers as they are spelled: the official decoder copies that text into text fields.
        fields = json.loads(header, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise FrameError("header is not JSON, or nested too deeply") from error
    if not isinstance(fields, dict):
        raise FrameError("header is not a JSON object")
    ext = fields.get("extFields")
    if ext is not None and not isinstance(ext, dict):
        raise FrameError("extFields is not a JSON object")
    remark = fields.get("remark")
    return Command(
        _json_int(fields, "code", "0"),
        _json_int(fields, "opaque", "0"),
        _json_int(fields, "flag", "0"),
        {name: _java_text(value) for name, value in ext.items() if value is not None} if ext else {},
        body,
        _java_text(remark) if remark else None,
        _json_language(fields.get("language", "JAVA")),
        _json_int(fields, "version", "0"),
        False,
    )


def _json_int(fields: dict[str, Any], name: str, default: str) -> int:
    spelled = fields.get(name)
    if spelled is None:
        spelled = default
    if isinstance(spelled, str) and _SPELLED_INT(spelled) and _INT_MIN <= int(spelled) <= _INT_MAX:
        return int(spelled)
    raise FrameError(f"header field {name} is not a 32-bit number")


def _json_language(value: Any) -> str:
    if not isinstance(value, str):
        return "OTHER"
    if value.isdecimal() and len(value) < 3 and int(value) < len(LANGUAGE_NAMES):
        return LANGUAGE_NAMES[int(value)]
    return value if value in LANGUAGE_CODES else "OTHER"


def _java_text(value: Any) -> str:
    if type(value) is str:
        return value
    try:
        return _dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise FrameError("a header field is nested too deeply") from error


def _decode_binary_frame(
    buffer: Buffer, header_at: int, end: int, word: int, max_header_bytes: int
) -> Command:
    header_bytes = word & 0xFFFFFF
    header_end = header_at + header_bytes
    if word >> 24 != SERIALIZE_BINARY:
        raise FrameError(f"unknown serialise type {word >> 24}, or a JSON header of {header_bytes} bytes")
    if not _BINARY_MIN_BYTES <= header_bytes <= max_header_bytes or header_end > end:
        raise FrameError(f"binary header of {header_bytes} bytes in a frame of {end - header_at + 4}")
    # A view costs more than the second copy of a small body.
    body = (
        buffer[header_end:end] if end - header_end < _LARGE_BODY_BYTES else memoryview(buffer)[header_end:end]
    )
    return _decode_binary(bytes(buffer[header_at:header_end]), bytes(body))


def _decode_binary(header: bytes, body: bytes) -> Command:
    code, language, version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(header)
    ext_at = _BINARY_MIN_BYTES + remark_bytes
    if not _BINARY_MIN_BYTES <= ext_at <= len(header):
        raise FrameError("remark extends beyond the binary header")
    remark = header[_BINARY_HEAD.size : ext_at - 4].decode("utf-8", "replace") if remark_bytes else None
    if ext_at + int.from_bytes(header[ext_at - 4 : ext_at]) != len(header):
        raise FrameError("header fields do not end where the binary header ends")
    name = LANGUAGE_NAMES[language] if language < len(LANGUAGE_NAMES) else "OTHER"
    fields = header[ext_at:]
    ext = _header_layouts.read_fields(fields)
    if ext is None:
        ext = _binary_ext(header, ext_at)
        _header_layouts.learn(fields, ext)
    return Command(code, opaque, flag, ext, body, remark, name, version, True)


def _binary_ext(header: bytes, at: int) -> dict[str, str]:
    """Decode name and value pairs from ``at`` to the end of ``header``, each after its 2-byte or 4-byte length.

    Latin-1 keeps each byte at its index, so slices of one decoded text can be used as they are where all of it is
    ASCII. The names of the most frequent codes are single letters: one unpack reads a whole name and the value's
    length.
    """
    text = header.decode("latin-1")
    ext: dict[str, str] = {}
    end = len(header)
    unpack, letters = _ONE_LETTER_AT, _LATIN_1
    try:
        while at < end:
            name_bytes, letter, size = unpack(header, at)
            if name_bytes == 1:
                value_at = at + 7
                at = value_at + size
                ext[letters[letter]] = text[value_at:at]
            else:
                value_at = at + 6 + name_bytes
                size = _LENGTH_AT(header, value_at - 4)[0]
                ext[text[at + 2 : value_at - 4]] = text[value_at : value_at + size]
                at = value_at + size
    except struct.error:
        at = -1
    if at != end:
        raise FrameError("a header field extends beyond the binary header")
    return ext if text.isascii() else _utf8(ext)


def _utf8(ext: dict[str, str]) -> dict[str, str]:
    if "".join(ext.values()).isascii() and "".join(ext).isascii():
        return ext  # Only a length had its top bit set.
    return {
        name.encode("latin-1").decode("utf-8", "replace"): value.encode("latin-1").decode("utf-8", "replace")
        for name, value in ext.items()
    }


def encode_command(command: Command) -> bytes:
    """Return the whole frame, its length word included, in the serialisation that ``command.binary`` names.

    Raises FrameError when the parts do not fit the format (header over 16 MiB, a binary code beyond 16 bits).
    """
    build = _binary_frame if command.binary else _json_frame
    return build(
        command.code,
        command.opaque,
        command.flag,
        command.ext,
        command.body,
        command.remark,
        command.language,
        command.version,
    )


def encode_response(
    opaque: int,
    code: int,
    ext: dict[str, str] | None,
    body: bytes | memoryview = b"",
    remark: str | None = None,
    binary: bool = False,
) -> bytes:
    """Return the whole frame of an answer to the request numbered ``opaque``.

    Clients read either serialisation, whichever they sent. JSON takes about half the time to build, since one call
    into C writes all fields; the binary form is smaller by 80 to 100 bytes.
    Raises FrameError as `encode_command` does.
    """
    if binary:
        return _binary_frame(code, opaque, FLAG_RESPONSE, ext, body, remark, "OTHER", CURRENT_VERSION)
    if remark is not None or not ext:
        return _json_frame(code, opaque, FLAG_RESPONSE, ext, body, remark, "OTHER", CURRENT_VERSION)
    fields, numbers = json_text(ext), b"%d,%b%d" % (code, _ANSWER_MIDDLE, opaque)
    header_bytes = _ANSWER_BYTES + len(fields) + len(numbers)
    if header_bytes > 0xFFFFFF:
        raise FrameError(f"header of {header_bytes} bytes does not fit a frame")
    head = _FRAME_HEAD.pack(4 + header_bytes + len(body), header_bytes)
    return b"".join((head, _ANSWER_START, fields, _ANSWER_CODE, numbers, _ANSWER_END, body))


class ResponseTemplate:
    """Builds successful answers that always have the same header fields, with one formatting operation.

    ``fields`` maps each wire name to ``int`` or ``str``; a call takes the values in that order, text already as its
    `json_text`. This is about a fifth faster than making a dict for `encode_response`.
    """

    __slots__ = ("_format",)

    def __init__(self, fields: Mapping[str, type[int] | type[str]]) -> None:
        pairs = [
            json_text(name).replace(b"%", b"%%") + (b':"%d"' if kind is int else b":%b")
            for name, kind in fields.items()
        ]
        self._format = b'{"code":0,"extFields":{%b},"flag":1,"language":"OTHER","opaque":%%d,%b' % (
            b",".join(pairs),
            _ANSWER_END[1:],
        )

    def texts(self) -> list[bytes]:
        """Return the header's text before, between and after the values; the opaque is the last value."""
        return _VALUE.split(self._format)

    def __call__(self, opaque: int, *values: int | bytes) -> bytes:
        """Return the whole frame of the answer to the request numbered ``opaque``. TypeError for other values."""
        header = self._format % (*values, opaque)
        size = len(header)
        return _FRAME_HEAD.pack(size + 4, size) + header


def _json_frame(
    code: int,
    opaque: int,
    flag: int,
    ext: dict[str, str] | None,
    body: bytes | memoryview,
    remark: str | None,
    language: str,
    version: int,
) -> bytes:
    header = (
        b'{"code":%d,%b"flag":%d,"language":%b,"opaque":%d,%b"serializeTypeCurrentRPC":"JSON","version":%d}'
        % (
            code,
            b'"extFields":%b,' % json_text(ext) if ext else b"",
            flag,
            json_text(language),
            opaque,
            b'"remark":%b,' % json_text(remark) if remark is not None else b"",
            version,
        )
    )
    return _frame(SERIALIZE_JSON, header, body)


def _frame(kind: int, header: bytes, body: bytes | memoryview) -> bytes:
    if len(header) > 0xFFFFFF:
        raise FrameError(f"header of {len(header)} bytes does not fit a frame")
    head = _FRAME_HEAD.pack(4 + len(header) + len(body), kind << 24 | len(header))
    return b"".join((head, header, body))


def json_text(value: dict[str, str] | str) -> bytes:
    """Encode text or a map of text as JSON; lone surrogates, which UTF-8 cannot hold, become question marks."""
    try:
        return _dumps(value)
    except orjson.JSONEncodeError:
        return _dumps(_without_surrogates(value))


def _without_surrogates(value: dict[str, str] | str) -> dict[str, str] | str:
    if isinstance(value, str):
        return _clean(value)
    return {_clean(name): _clean(text) for name, text in value.items()}


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _binary_frame(
    code: int,
    opaque: int,
    flag: int,
    ext: dict[str, str] | None,
    body: bytes | memoryview,
    remark: str | None,
    language: str,
    version: int,
) -> bytes:
    fields = _binary_fields(ext) if ext else b""
    note = remark.encode("utf-8", "replace") if remark else b""
    try:
        head = _BINARY_HEAD.pack(
            code, LANGUAGE_CODES.get(language, LANGUAGE_OTHER), version, opaque, flag, len(note)
        )
    except struct.error as reason:
        raise FrameError(f"a number does not fit the binary header: {reason}") from reason
    return _frame(SERIALIZE_BINARY, b"".join((head, note, _LENGTH.pack(len(fields)), fields)), body)


def _binary_fields(ext: dict[str, str]) -> bytes:
    parts: list[bytes] = []
    for name, value in ext.items():
        text = value.encode("utf-8", "replace")
        # Names may come from a client, and long ones would fill the cache with 64 MB.
        packed = _cached_binary_name(name) if len(name) <= _MAX_CACHED_NAME_CHARS else _binary_name(name)
        parts += (packed, _LENGTH.pack(len(text)), text)
    return b"".join(parts)


def _binary_name(name: str) -> bytes:
    key = name.encode("utf-8", "replace")
    if len(key) > 0x7FFF:
        raise FrameError(f"header field name of {len(key)} bytes")
    return len(key).to_bytes(2) + key


_cached_binary_name = lru_cache(maxsize=1024)(_binary_name)
