"""Both APIs behind TLS, asked by our clients, our commands and strangers."""

import asyncio
import http.client
import json
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specserve.access import Access, is_reachable
from specserve.cli import main
from specserve.client import AsyncClient, Client
from specserve.errors import InvalidField, Unauthenticated, Unavailable
from tests.specserve.api.conftest import Rig, rigs_in
from tests.specserve.api.key_rig import ALICE, BOB, key_file

TLS = Path(__file__).parents[2] / "fixtures" / "tls"
AUTHORITY, STRANGER, CERT = (
    str(TLS / f"{name}.pem") for name in ("authority", "stranger", "service")
)


@pytest.fixture(scope="module")
def rig(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("tls")
    key = Path(shutil.copyfile(TLS / "service.key", folder / "service.key"))
    key.chmod(0o600)
    door = {"api_key_file": str(key_file(folder)), "tls_cert": CERT, "tls_key": str(key)}
    with rigs_in(model_folder, folder) as make:
        yield make(door=door)


@pytest.mark.parametrize("trusted", [AUTHORITY, CERT])
def test_clients_get_their_answer(rig, trusted):
    with Client(rig.address, api_key=ALICE, tls_ca=trusted) as client:
        assert client.generate("fox").text == rig.text
        assert "".join(delta.text for delta in client.stream("fox")) == rig.text
        assert client.server_info().state == "ready"

    async def ask() -> str:
        async with AsyncClient(rig.address, api_key=ALICE, tls_ca=trusted) as client:
            await client.abort("unknown")
            assert (await client.load()).num_in_flight == 0
            streamed = [delta.text async for delta in client.stream("fox")]
            assert "".join(streamed) == rig.text
            return (await client.generate("fox")).text

    assert asyncio.run(ask()) == rig.text


def test_a_certificate_is_for_a_name_as_well(rig):
    _, _, port = rig.address.rpartition(":")
    with Client(f"localhost:{port}", api_key=ALICE, tls_ca=AUTHORITY) as client:
        assert client.server_info().state == "ready"


def test_clients_without_a_key_are_refused(rig):
    for key in (None, ALICE[:-1]):
        with (
            Client(rig.address, api_key=key, tls_ca=AUTHORITY) as client,
            pytest.raises(Unauthenticated),
        ):
            client.generate("fox")


@pytest.mark.parametrize("trusted", [None, STRANGER, "public"])
def test_whoever_trusts_another_authority_hears_nothing(rig, trusted):
    assert not is_reachable(Access(rig.address, ALICE, trusted))
    with (
        Client(rig.address, api_key=ALICE, tls_ca=trusted) as client,
        pytest.raises(Unavailable),
    ):
        client.generate("fox")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidField, match="tls_ca: cannot read"):
        Client("127.0.0.1:1", tls_ca=str(tmp_path / "none.pem"))


def test_no_log_has_a_clients_key():
    assert ALICE not in repr(Access("127.0.0.1:1", ALICE))


def test_http_is_https(rig):
    assert rig.url.startswith("https://127.0.0.1:")
    host, _, port = rig.url.removeprefix("https://").partition(":")
    context = ssl.create_default_context(cafile=AUTHORITY)
    connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context)
    headers = {"Authorization": f"Bearer {ALICE}"}
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "fox"}), headers)
    answer = json.loads(connection.getresponse().read())
    assert rig.text.startswith(answer["choices"][0]["text"])
    assert answer["choices"][0]["text"]
    connection.close()


def test_http_without_tls_is_not_answered(rig):
    host, _, port = rig.url.removeprefix("https://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n")
        try:
            assert b"HTTP" not in connection.recv(65_536)
        except ConnectionResetError:
            pass  # said nothing at all


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
def test_old_versions_are_refused(rig, version, recwarn):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(AUTHORITY)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    for place in (rig.url.removeprefix("https://"), rig.address):
        host, _, port = place.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=20) as connection,
            pytest.raises((ssl.SSLError, ConnectionResetError)),
        ):
            context.wrap_socket(connection, server_hostname=host)


@pytest.fixture
def command(rig, tmp_path, capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """Exit code, stdout and stderr of a command that asks the service."""
    monkeypatch.delenv("SPECSERVE_API_KEY", raising=False)
    key_file(tmp_path, f"{ALICE}\n{BOB}\n")

    def run(name: str, *words: str) -> tuple[int, str, str]:
        code = main([name, "--connect", rig.address, *words])
        return code, *capsys.readouterr()

    return run


COMMANDS = {
    "generate": ("fox",),
    "info": (),
    "top": ("--once", "--interval", "0.1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_take_keys_and_certificates(command, tmp_path, monkeypatch, name):
    words = (*COMMANDS[name], "--tls-ca", AUTHORITY)
    code, out, _ = command(name, *words, "--api-key-file", str(tmp_path / "keys"))
    assert code == 0
    assert out
    code, _, told = command(name, *words)
    assert code == 1
    assert "api key: is missing" in told
    monkeypatch.setenv("SPECSERVE_API_KEY", ALICE)
    assert command(name, *words)[0] == 0
    monkeypatch.setenv("SPECSERVE_API_KEY", "wrong")
    assert "api key: is not known" in command(name, *words)[2]
    code, _, told = command(name, *COMMANDS[name])
    assert code == 1
    assert "no service answers" in told


def test_an_audit_takes_them(command, tmp_path):
    words = ("--quick", "--tls-ca", AUTHORITY)
    assert "api key: is missing" in command("audit", *words)[2]
    key_file(tmp_path, f"{'0' * 24}\n")
    words += ("--api-key-file", str(tmp_path / "keys"))
    assert "api key: is not known" in command("audit", *words)[2]


def test_what_opens_no_door_is_refused(capsys, tmp_path):
    for flag in ("--api-key-file", "--tls-ca"):
        assert main(["generate", flag, "x", "fox"]) == 2
        assert f"{flag}: is of use with --connect HOST:PORT alone" in capsys.readouterr().err
    (tmp_path / "keys").write_text("short")
    words = ["--api-key-file", str(tmp_path / "keys")]
    assert main(["info", "--connect", "127.0.0.1:1", *words]) == 2
    assert "chmod 600" in capsys.readouterr().err


def test_a_file_without_a_certificate_is_refused_before_anybody_is_asked(tmp_path):
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    with pytest.raises(InvalidField, match="has no certificate; it must be a PEM file"):
        Access("127.0.0.1:1", tls_ca=str(tmp_path / "key.pem")).channel()
