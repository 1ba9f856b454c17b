# pyright: strict
"""What of `[server]` decides who gets in: hosts, ports, keys and certificates that go together.

Asked before a model is loaded. Reads files, binds nothing.
"""

import ipaddress
import re
import ssl
from pathlib import Path

import msgspec

from specserve.errors import InvalidField
from specserve.settings.config import ServerConfig
from specserve.settings.key_file import read_keys, require_private

_LOCALHOST = "localhost"
ANY_HOST = "*"  # of `allowed_hosts`
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def require_safe_door(server: ServerConfig) -> ServerConfig:
    """`server` with whole paths and an address as host. Raises InvalidField for what is unsafe."""
    server = msgspec.structs.replace(
        server,
        host=_address(server.host),
        allowed_hosts=tuple(map(_host_name, server.allowed_hosts)),
        api_key_file=_whole(server.api_key_file),
        tls_cert=_whole(server.tls_cert),
        tls_key=_whole(server.tls_key),
    )
    if server.api_key_file is not None:
        if server.insecure:
            problem = "says that nobody needs a key, but server.api_key_file has keys; drop one"
            raise InvalidField("server.insecure", problem)
        if server.allowed_hosts:
            problem = "is for services without keys; with server.api_key_file any host may be named"
            raise InvalidField("server.allowed_hosts", f"{problem}: leave it out")
        read_keys(Path(server.api_key_file), "server.api_key_file")
    elif server.max_requests_per_key:
        problem = "needs keys: type --api-key-file FILE as well"
        raise InvalidField("server.max_requests_per_key", problem)
    elif not is_loopback(server.host) and not server.insecure:
        problem = (
            f"{server.host} can be reached by others, and nobody needs a key; type --api-key-file "
            "FILE with a key a line, or --insecure where the network keeps strangers out"
        )
        raise InvalidField("server.host", problem)
    _require_certificate(server)
    _require_two_ports(server)
    return server


def door_remarks(server: ServerConfig) -> list[str]:
    """What is allowed and worth a warning."""
    remarks: list[str] = []
    if ANY_HOST in server.allowed_hosts:
        remarks.append(
            "allowed_hosts: any web page that is opened where this service can be reached may use "
            "it, and read what it answers"
        )
    if not is_loopback(server.host):
        if server.api_key_file is None:
            remarks.append(
                f"insecure: whoever reaches {server.host} is served, and may stop the service"
            )
        elif server.tls_cert is None:
            remarks.append(
                f"keys and texts cross the network to {server.host} unencrypted: --tls-cert and "
                "--tls-key encrypt them, where no proxy in front does"
            )
    return remarks


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine alone."""
    return ipaddress.ip_address(host).is_loopback


def is_address(host: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_host_name(host: str) -> bool:
    """Whether it may be the name of a host, in small letters, or is its address."""
    return is_address(host) or _NAME.fullmatch(host) is not None


def _address(host: str) -> str:
    """As the kernel takes it; a name could be looked up to anything."""
    if host == _LOCALHOST:
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
    except ValueError as error:
        problem = f"{host!r} is no IP address; write one, as 0.0.0.0 for every interface"
        raise InvalidField("server.host", problem) from error


def _host_name(text: str) -> str:
    """In small letters, and an address without the brackets that it has in a URL."""
    name = text.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    if name != ANY_HOST and not is_host_name(name):
        problem = f"has {text[:64]!r}; write names as example.org, without port or https://, or *"
        raise InvalidField("server.allowed_hosts", problem)
    return name


def _whole(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _require_two_ports(server: ServerConfig) -> None:
    """Each API has one of its own; elsewhere `--port` is that of OpenAI's."""
    port = server.grpc_port
    if port and port == server.http_port_wish:
        problem = (
            f"{port} is the port of OpenAI's API as well; --port is gRPC's and --http-port that of "
            "OpenAI's API: leave one of them out, or type another one"
        )
        raise InvalidField("server.grpc_port", problem)


def _require_certificate(server: ServerConfig) -> None:
    """Both files or none, and they belong together."""
    cert, key = server.tls_cert, server.tls_key
    if cert is None and key is None:
        return
    for setting, path, other in (
        ("server.tls_cert", cert, "--tls-key"),
        ("server.tls_key", key, "--tls-cert"),
    ):
        if path is None:
            raise InvalidField(setting, f"is missing; {other} needs the other one as well")
        try:
            with Path(path).open("rb") as file:
                if setting == "server.tls_key":
                    require_private(file.fileno(), Path(path), setting)
        except OSError as error:
            raise InvalidField(setting, f"cannot read {path}: {error.strerror}") from error
    assert cert is not None
    try:
        # A password is nobody's to type here: a key that needs one is refused like a broken one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidField("server.tls_cert", _certificate_problem(cert, key, error)) from error


def _certificate_problem(cert: str, key: str | None, error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"{cert} is not the certificate of the key {key} (server.tls_key)"
    return (
        f"{cert} and {key} (server.tls_key) are no certificate and key: both are PEM files, the "
        f"key without a password ({error})"
    )
