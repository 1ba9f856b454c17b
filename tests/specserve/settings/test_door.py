"""Who may get in: hosts, keys and certificates that go together, and all that do not."""

import shutil
from pathlib import Path

import pytest

from specserve.errors import InvalidField
from specserve.settings.config import ServerConfig
from specserve.settings.door import door_remarks, require_safe_door

KEY = "a1" * 12
TLS = Path(__file__).parents[2] / "fixtures" / "tls"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def tls_key(tmp_path: Path) -> Path:
    """A private copy: a checkout has no modes that keep others out."""
    path = Path(shutil.copyfile(TLS / "service.key", tmp_path / "service.key"))
    path.chmod(0o600)
    return path


def problem(**fields: object) -> str:
    with pytest.raises(InvalidField) as caught:
        require_safe_door(ServerConfig(**fields))
    return str(caught.value)


def test_by_default_nobody_else_can_reach_it():
    door = require_safe_door(ServerConfig())
    assert (door.host, door.place) == ("127.0.0.1", "127.0.0.1")
    assert door_remarks(door) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "fd00::1", "169.254.1.1"])
def test_another_host_needs_keys_or_a_word(host, keys):
    told = problem(host=host)
    assert told.startswith(f"server.host: {host} can be reached by others")
    assert "--api-key-file FILE" in told
    assert "--insecure" in told
    with_keys = require_safe_door(ServerConfig(host=host, api_key_file=str(keys)))
    (remark,) = door_remarks(with_keys)
    assert "unencrypted" in remark
    insecure = require_safe_door(ServerConfig(host=host, insecure=True))
    (remark,) = door_remarks(insecure)
    assert remark.startswith("insecure: whoever reaches")


@pytest.mark.parametrize(
    ("written", "host", "place"),
    [
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2", "127.0.0.2"),
        ("::1", "::1", "[::1]"),
        ("[::1]", "::1", "[::1]"),
        ("0:0:0:0:0:0:0:1", "::1", "[::1]"),
    ],
)
def test_loopback_needs_nothing_however_it_is_written(written, host, place):
    door = require_safe_door(ServerConfig(host=written))
    assert (door.host, door.place) == (host, place)


# The last is no loopback address to Python, whatever some resolver makes of it.
@pytest.mark.parametrize(
    "host", ["example.org", "localhost.example.org", "127.1", "0", "", "127.0.0.1:80", "2130706433"]
)
def test_a_name_is_no_host(host):
    assert "is no IP address; write one" in problem(host=host, insecure=True)


def test_an_address_of_others_in_the_clothes_of_loopback_is_refused():
    assert "can be reached by others" in problem(host="::ffff:10.0.0.1")


def test_insecure_and_keys_contradict_each_other(keys):
    assert problem(api_key_file=str(keys), insecure=True).startswith("server.insecure: says that")


@pytest.mark.parametrize(
    "ports", [{"grpc_port": 8000}, {"http_port": 7411}, {"grpc_port": 9, "http_port": 9}]
)
def test_each_api_has_a_port_of_its_own(ports):
    told = problem(**ports)
    assert told.startswith(f"server.grpc_port: {max(ports.values())} is the port of OpenAI's API")
    assert "--port is gRPC's and --http-port that of OpenAI's API" in told
    assert require_safe_door(ServerConfig(**ports, http=False))


def test_any_free_port_is_another_one_each_time():
    assert require_safe_door(ServerConfig(grpc_port=0, http_port=0))


def test_a_limit_of_each_key_needs_keys():
    assert "type --api-key-file FILE as well" in problem(max_requests_per_key=3)


def test_names_of_hosts_are_names_and_no_urls(keys):
    door = require_safe_door(ServerConfig(allowed_hosts=(" Gpu7.Example.org.", "[::1]", "*")))
    assert door.allowed_hosts == ("gpu7.example.org", "::1", "*")
    assert "any web page" in door_remarks(door)[0]
    for text in ("https://example.org", "example.org:80", "*.example.org", "a b", ".", "[]"):
        told = problem(allowed_hosts=("localhost", text))
        assert told.startswith(f"server.allowed_hosts: has {text!r}; write names as example.org")
    told = problem(allowed_hosts=("example.org",), api_key_file=str(keys))
    assert told.startswith("server.allowed_hosts: is for services without keys")


def test_a_file_of_keys_is_read_before_anything_starts(keys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert require_safe_door(ServerConfig(api_key_file="keys")).api_key_file == str(keys)
    assert problem(api_key_file="nothing").startswith("server.api_key_file: cannot read")


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o620, 0o666])
def test_a_secret_that_strangers_can_read_or_change_is_refused(mode, keys, tls_key):
    keys.chmod(mode)
    told = problem(api_key_file=str(keys))
    assert told == (
        f"server.api_key_file: {keys} can be read or changed by others; type: chmod 600 {keys}"
    )
    tls_key.chmod(mode)
    told = problem(tls_cert=str(TLS / "service.pem"), tls_key=str(tls_key))
    assert told.startswith("server.tls_key: ")
    assert told.endswith(f"type: chmod 600 {tls_key}")


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_a_secret_may_be_mounted_for_a_group(mode, keys):
    keys.chmod(mode)
    require_safe_door(ServerConfig(api_key_file=str(keys)))


def test_a_certificate_has_a_key_and_it_is_its_own(tls_key, tmp_path):
    cert, stranger = str(TLS / "service.pem"), str(TLS / "stranger.pem")
    door = require_safe_door(ServerConfig(tls_cert=cert, tls_key=str(tls_key)))
    assert (door.tls_cert, door.tls_key) == (cert, str(tls_key))
    assert problem(tls_cert=cert).startswith("server.tls_key: is missing; --tls-cert")
    assert problem(tls_key=str(tls_key)).startswith("server.tls_cert: is missing; --tls-key")
    assert "is not the certificate of the key" in problem(tls_cert=stranger, tls_key=str(tls_key))
    assert "cannot read" in problem(tls_cert=str(tmp_path / "none"), tls_key=str(tls_key))
    no_pem = tmp_path / "no.pem"
    no_pem.write_text("nothing")
    assert "are no certificate and key" in problem(tls_cert=str(no_pem), tls_key=str(tls_key))


def test_keys_with_a_certificate_are_nothing_to_warn_of(keys, tls_key):
    cert = str(TLS / "service.pem")
    server = ServerConfig(
        host="0.0.0.0", api_key_file=str(keys), tls_cert=cert, tls_key=str(tls_key)
    )
    assert door_remarks(require_safe_door(server)) == []
