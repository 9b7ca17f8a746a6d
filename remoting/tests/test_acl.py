import base64
import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from codec.command import Command, decode_frame, encode_command
from codec.constants import VERSION_NAMES
from remoting.acl import Credentials, compute_signature, is_signed_with, make_signer, sign_request

KEY = Credentials("me", "a secret")


def by_hand(text, key="a secret"):
    return base64.b64encode(hmac.new(key.encode(), text, hashlib.sha1).digest()).decode()


def test_values_in_the_order_of_their_names_and_the_body():
    command = Command(10, ext={"b": "2", "Z": "3", "a": "1"}, body=b"body")
    sign_request(command, KEY)
    assert command.ext["AccessKey"] == "me"
    assert command.ext["Signature"] == by_hand(b"me" + b"3" + b"1" + b"2" + b"body")


def test_no_body_and_a_body_that_is_a_view():
    assert compute_signature(Command(1, ext={"a": "1"}), "a secret") == by_hand(b"1")
    assert compute_signature(Command(1, ext={"a": "1"}, body=memoryview(b"xy")), "a secret") == by_hand(
        b"1xy"
    )


def test_a_security_token_is_signed_and_goes_when_there_is_none():
    command = Command(1, ext={"a": "1"})
    sign_request(command, Credentials("me", "a secret", "token"))
    assert command.ext["Signature"] == by_hand(b"me" + b"token" + b"1")
    sign_request(command, KEY)
    assert "SecurityToken" not in command.ext
    assert command.ext["Signature"] == by_hand(b"me" + b"1")


def test_names_are_sorted_as_java_does():
    """A character beyond 16 bits is two of 0xD800 to 0xDFFF there, and so before one of 0xE000 and more."""
    command = Command(1, ext={"\uff5e": "2", "\U0001f600": "1"})
    assert compute_signature(command, "a secret") == by_hand(b"12")


def test_old_clients_mark_a_search_after_signing():
    ext = {"key": "k", "_UNIQUE_KEY_QUERY": "true"}
    old = Command(12, ext=ext, version=VERSION_NAMES.index("V4_9_3"))
    new = Command(12, ext=ext, version=VERSION_NAMES.index("V4_9_4"))
    assert compute_signature(old, "a secret") == by_hand(b"k")
    assert compute_signature(new, "a secret") == by_hand(b"true" + b"k")


def test_signed_again_with_other_credentials():
    command = Command(10, ext={"a": "1"}, body=b"x")
    make_signer(Credentials("somebody", "else"))(command)
    make_signer(KEY)(command)
    assert is_signed_with(command, KEY)


def test_changed_requests_and_other_signatures_are_detected():
    command = Command(10, ext={"a": "1"}, body=b"x")
    assert not is_signed_with(command, KEY)
    sign_request(command, KEY)
    assert is_signed_with(command, KEY)
    assert not is_signed_with(command, Credentials("me", "other"))
    assert not is_signed_with(command, Credentials("you", "a secret"))
    command.ext["a"] = "2"
    assert not is_signed_with(command, KEY)


def test_printing_shows_no_secret():
    shown = f"{Credentials('me', 'a secret', 'a token')!r}"
    assert "me" in shown
    assert "secret'" not in shown
    assert "token'" not in shown


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8)), st.binary(max_size=20), st.booleans())
def test_a_signature_holds_on_the_wire(ext, body, binary):
    command = Command(10, ext=dict(ext), body=body, binary=binary)
    sign_request(command, KEY)
    frame = encode_command(command)
    assert is_signed_with(decode_frame(frame, 4, len(frame)), KEY)


@given(st.text(st.characters(blacklist_categories=("Cs",)), max_size=200), st.binary(max_size=300))
def test_keys_of_any_length(key, body):
    """Keys longer than a block of SHA1 (64 bytes) are digested first."""
    assert compute_signature(Command(1, ext={"a": "value"}, body=body), key) == by_hand(b"value" + body, key)


def test_a_request_without_fields():
    assert compute_signature(Command(1, body=b"x"), "a secret") == by_hand(b"x")
    assert compute_signature(Command(1, ext={"Signature": "s"}), "a secret") == by_hand(b"")
