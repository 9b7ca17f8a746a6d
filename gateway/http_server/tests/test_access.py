"""Console access: host names, foreign pages, users and roles, bounded attempts, and what an answer reveals."""

import base64
import hashlib
import json
import logging
import ssl
import urllib.request

import pytest
import trio

from gateway.http_server.access import (
    FAILURE_PERIOD_S,
    MAX_FAILURE_RECORDS,
    MAX_FAILURES,
    MAX_WAITING_VERIFICATIONS,
    ConsoleAccess,
    FailedAttempts,
    PasswordCheck,
)
from gateway.http_server.errors import ConsoleError
from gateway.http_server.http_connection import HttpRequest
from gateway.http_server.password_hash import PasswordHash
from gateway.http_server.settings import ConsoleSettings
from gateway.http_server.tests.test_server import build_request, make_console, send_request
from remoting.certificates import CertificateAuthority
from remoting.tests.virtual import virtual
from toolkit.settings import SettingsError
from toolkit.toml_tables import load_table


def cheap_hash(password):
    """Return a hash that takes no time, so that tests may verify it on the loop."""
    salt = b"salt salt"
    key = hashlib.scrypt(password.encode(), salt=salt, n=2, r=1, p=1, dklen=32)
    return str(PasswordHash(1, 1, 1, salt, key))


OPERATOR = {"name": "otto", "role": "operator", "password_hash": cheap_hash("otto's password")}
VIEWER = {"name": "vera", "password_hash": cheap_hash("vera's password")}


def basic(name, password):
    return "Authorization: Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


OTTO, VERA = basic("otto", "otto's password"), basic("vera", "vera's password")


def console(**settings):
    table = {"users": [OPERATOR, VIEWER], **settings}
    return make_console(**{name: getattr(load_table(ConsoleSettings, table), name) for name in table})


async def status_of(served, method, *headers, path="/echo", without=()):
    request = build_request(method, path, headers=headers)
    for line in without:
        request = request.replace(line.encode() + b"\r\n", b"")
    return (await send_request(served, request))[0]


@virtual
async def test_users_with_their_passwords():
    served = console()
    for headers, status in (
        ([], 401),
        ([OTTO], 200),
        ([VERA], 200),
        ([basic("otto", "vera's password")], 401),
        ([basic("otto", "")], 401),
        ([basic("nobody", "otto's password")], 401),
        (["Authorization: Basic !"], 400),
        (["Authorization: Basic b3R0bw=="], 400),
        (["Authorization: Basic /w=="], 400),
        (["Authorization: Bearer "], 401),
        (["Authorization: otto"], 401),
    ):
        assert await status_of(served, "GET", *headers) == status, headers


@virtual
async def test_viewers_only_look():
    served = console()
    assert await status_of(served, "GET", VERA) == 200
    assert await status_of(served, "POST", VERA) == 403
    assert await status_of(served, "DELETE", VERA) == 403
    assert await status_of(served, "POST", OTTO) == 200


@virtual
async def test_token_and_users_side_by_side():
    served = console(token="sesame")
    assert await status_of(served, "POST", "Authorization: Bearer sesame") == 200
    assert await status_of(served, "POST", OTTO) == 200
    assert await status_of(served, "POST", "Authorization: Bearer simsalabim") == 401


@virtual
async def test_the_challenge_names_the_ways():
    _, headers, body = await send_request(console(), build_request("GET", "/status"))
    assert headers[b"www-authenticate"].startswith(b"Basic realm=")
    assert "name and password" in json.loads(body)["error"]
    _, headers, _ = await send_request(make_console(token="t"), build_request("GET", "/status"))
    assert headers[b"www-authenticate"].startswith(b"Bearer realm=")


@virtual
async def test_answers_may_not_be_embedded_elsewhere():
    _, headers, _ = await send_request(make_console(), build_request("GET", "/status"))
    assert headers[b"cross-origin-resource-policy"] == b"same-origin"
    assert b"frame-ancestors 'none'" in headers[b"content-security-policy"]


@virtual
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        (["Origin: http://localhost"], True),
        (["Origin: https://localhost"], True),
        (["Origin: http://localhost:81"], False),
        (["Origin: http://evil.example"], False),
        (["Origin: null"], False),
        (["Origin: "], False),
        (["Sec-Fetch-Site: same-origin"], True),
        (["Sec-Fetch-Site: none"], True),
        (["Sec-Fetch-Site: same-site"], False),
        (["Sec-Fetch-Site: cross-site"], False),
        (["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"], False),
    ],
)
async def test_pages_of_other_sites_are_refused(method, headers, allowed):
    """Browsers send stored passwords with their requests, too, so credentials prove nothing here."""
    assert await status_of(console(), method, OTTO, *headers) == (200 if allowed else 403)
    assert await status_of(make_console(), method, *headers) == (200 if allowed else 403)


@virtual
async def test_a_link_on_another_site_may_be_followed_but_not_posted():
    link = ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"]
    assert await status_of(console(), "GET", OTTO, *link) == 200
    assert await status_of(console(), "POST", OTTO, *link) == 403


@virtual
async def test_an_action_needs_a_header_that_forms_cannot_set():
    without = ["X-Requested-With: tests"]
    for served, headers in ((console(), [OTTO]), (make_console(), [])):
        assert await status_of(served, "POST", *headers, without=without) == 403
        assert await status_of(served, "GET", *headers, without=without) == 200
    served = make_console(token="sesame")
    assert await status_of(served, "POST", "Authorization: Bearer sesame", without=without) == 200


@virtual
@pytest.mark.parametrize("settings", [{}, {"token": "t"}, {"users": [OPERATOR]}])
async def test_host_names_must_be_configured(settings):
    hosts = {"hosts": ["Gateway.example.org"], **settings}
    headers = [OTTO] if "users" in settings else ["Authorization: Bearer t"]
    served = make_console(**{n: getattr(load_table(ConsoleSettings, hosts), n) for n in hosts})
    for host, status in (
        ("localhost", 200),
        ("127.0.0.1:9880", 200),
        ("[::1]:9880", 200),
        ("gateway.example.org:9880", 200),
        ("GATEWAY.EXAMPLE.ORG", 200),
        ("evil.example", 403),
        ("gateway.example.org.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ):
        request = build_request("GET", "/echo", headers=headers)
        request = request.replace(b"Host: localhost", f"Host: {host}".encode())
        assert (await send_request(served, request))[0] == status, host


@virtual
async def test_probes_stay_open():
    served = console()
    assert await status_of(served, "GET", "Origin: http://evil.example", path="/healthz") == 200


@virtual
async def test_failed_attempts_are_bounded_by_user_and_address():
    control = ConsoleAccess(load_table(ConsoleSettings, {"users": [OPERATOR, VIEWER]}), run_now)

    async def attempt(line, address="10.0.0.1"):
        asked = HttpRequest("GET", "/", "", {b"authorization": line.partition(": ")[2].encode()})
        try:
            await control.authorize(asked, address)
        except ConsoleError as error:
            return error.status, dict(error.headers)
        return 200, {}

    for _ in range(MAX_FAILURES):
        assert (await attempt(basic("otto", "wrong")))[0] == 401
    status, headers = await attempt(OTTO)
    assert (status, headers) == (429, {"Retry-After": "61"}), "not even the right password is looked at"
    assert (await attempt(VERA))[0] == 200
    assert (await attempt(OTTO, "10.0.0.2"))[0] == 200
    await trio.sleep(FAILURE_PERIOD_S)
    assert (await attempt(OTTO))[0] == 200


def test_the_table_of_failures_is_bounded():
    failures = FailedAttempts(lambda: 0.0)
    for number in range(3 * MAX_FAILURE_RECORDS):
        failures.note_failure(f"user-{number}", "10.0.0.1")
    assert len(failures._records) == MAX_FAILURE_RECORDS


async def run_now(work):
    return work()


@virtual
async def test_a_password_is_verified_once():
    hashed, runs = PasswordHash.parse(cheap_hash("password")), []

    async def counting(work):
        runs.append(work)
        return work()

    check = PasswordCheck({"otto": hashed}, counting)
    for _ in range(3):
        assert await check.is_right("otto", "password")
    assert len(runs) == 1
    assert not await check.is_right("otto", "passwore")
    assert not await check.is_right("ott", "opassword")
    assert await check.is_right("otto", "password")
    assert len(runs) == 3


@virtual
async def test_unknown_users_take_a_verification_too(monkeypatch):
    verified = []

    def record(self, password):
        verified.append(self)
        return False

    monkeypatch.setattr(PasswordHash, "matches", record)
    check = PasswordCheck({}, run_now)
    assert not await check.is_right("nobody", "password")
    assert [(each.log_n, each.parallelism) for each in verified] == [(14, 5)], "as slow as a real one"


@virtual
async def test_waiting_verifications_are_bounded():
    release = trio.Event()

    async def slow(work):
        await release.wait()
        return work()

    check, results = PasswordCheck({}, slow), []

    async def attempt(number):
        try:
            results.append(await check.is_right(f"user-{number}", "password"))
        except ConsoleError as error:
            results.append(error.status)

    async with trio.open_nursery() as nursery:
        for number in range(MAX_WAITING_VERIFICATIONS + 3):
            nursery.start_soon(attempt, number)
        await trio.testing.wait_all_tasks_blocked()
        assert results == [503, 503]
        release.set()
    assert results.count(False) == MAX_WAITING_VERIFICATIONS + 1


@virtual
async def test_actions_and_refusals_are_logged_without_secrets(caplog):
    caplog.set_level(logging.INFO)
    served = console(token="sesame")
    await status_of(served, "POST", OTTO)
    await status_of(served, "GET", basic("otto", "typed wrongly"))
    await status_of(served, "GET", basic("my password in the wrong field", "x"))
    action, refused, unknown = caplog.records
    assert (action.message, action.user, action.path, action.status) == (
        "console action",
        "otto",
        "/echo",
        200,
    )
    assert (refused.message, refused.user) == ("console credentials refused", "otto")
    assert unknown.user == "(unknown)"
    shown = " ".join(str(record.__dict__) for record in caplog.records)
    for secret in ("otto's password", "typed wrongly", "wrong field", "sesame", "$scrypt"):
        assert secret not in shown


@pytest.mark.parametrize(
    ("users", "problem"),
    [
        ([{**VIEWER, "name": "a:b"}], "name"),
        ([{**VIEWER, "role": "root"}], "role"),
        ([{**VIEWER, "password_hash": "open sesame"}], r"users\]\] vera: password_hash: not a hash"),
        ([VIEWER, VIEWER], "two users have the name vera"),
        ([{"name": "vera"}], "vera: password_hash: not a hash"),
        ([{"password_hash": VIEWER["password_hash"]}], "name must be given"),
    ],
)
def test_wrong_users_are_refused_without_quoting_the_hash(users, problem):
    with pytest.raises(SettingsError, match=problem) as error:
        load_table(ConsoleSettings, {"users": users}, "console")
    assert "open sesame" not in str(error.value)


def test_hashes_are_not_shown():
    assert "$scrypt" not in repr(load_table(ConsoleSettings, {"users": [OPERATOR]}))


@pytest.fixture
def certificate(tmp_path):
    authority = CertificateAuthority.create(tmp_path, "ca")
    return authority, authority.issue("console", ("127.0.0.1", "localhost"), days=1)


@pytest.mark.parametrize(("mode", "plain_works"), [("enforcing", False), ("permissive", True)])
def test_tls_of_the_console(certificate, mode, plain_works):
    authority, files = certificate
    tls = {"mode": mode, "certificate": str(files.certificate), "key": str(files.key)}

    async def main():
        served = console(tls=tls)
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(served.run)
            trusted = ssl.create_default_context(cafile=str(authority.files.certificate))

            def fetch(scheme, context):
                name, _, value = OTTO.partition(": ")
                request = urllib.request.Request(f"{scheme}://{host}:{port}/echo?a=1", headers={name: value})
                with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                    return json.loads(answer.read())

            assert await trio.to_thread.run_sync(fetch, "https", trusted) == {"a": "1"}
            if plain_works:
                assert await trio.to_thread.run_sync(fetch, "http", None) == {"a": "1"}
            else:
                with pytest.raises(OSError, match=r"."):
                    await trio.to_thread.run_sync(fetch, "http", None)
            with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
                await trio.to_thread.run_sync(fetch, "https", ssl.create_default_context())
            nursery.cancel_scope.cancel()

    trio.run(main)
