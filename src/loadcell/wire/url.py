"""What the user calls an endpoint -> `records.Endpoint`: where to connect and which paths to ask. Resolves nothing.

A URL without a path means /v1; a path is taken as it stands. What cannot be used is a UserError that names the flag and value.
"""

import ipaddress
import re
from typing import Final, Literal
from urllib.parse import quote

from msgspec import Struct

from loadcell.errors import UserError
from loadcell.records import Endpoint, Scheme

Api = Literal["chat", "completions"]

PORTS: Final[dict[Scheme, int]] = {"http": 80, "https": 443}
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the addresses that are no destination
_ASKS: Final[dict[str, str]] = {"chat": "/chat/completions", "completions": "/completions"}
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+\Z")
_PATH_SAFE: Final = "/%:@!$&'()*+,;=~-._"


class _Place(Struct, frozen=True):
    scheme: Scheme
    host: str
    port: int
    path: str


def parse_endpoint(base_url: str, api: Api, endpoint_path: str | None, index: int, proxy: str | None = None) -> Endpoint:
    """One `--base-url`. `endpoint_path` (`--endpoint`) is appended to the URL as given, instead of /v1 and the API's own path.

    `0.0.0.0` and `::` become this machine's loopback (`any_address_notice` says so). Loopback never goes through `proxy`.
    Raises UserError.
    """
    place = _split(base_url, "--base-url")
    return _endpoint(place, api, endpoint_path, index, proxy)


def from_host_port(
    host: str, port: int, api: Api, endpoint_path: str | None, index: int, proxy: str | None = None, scheme: Scheme = "http"
) -> Endpoint:
    """One `--host` and `--port`; an IPv6 host with or without brackets. Raises UserError."""
    bare = host.strip()
    if bare.startswith("[") and bare.endswith("]"):
        bare = bare[1:-1]
    place = _Place(scheme, _checked_host(bare, f"--host {host!r}"), _checked_port(str(port), "--port"), "")
    return _endpoint(place, api, endpoint_path, index, proxy)


def any_address_notice(given: str) -> str | None:
    """One line when `given` (a base URL or a host) names an any-address, which servers listen on but nobody can call; else null."""
    host = _host_in(given)
    to = _ANY.get(_plain_address(host))
    return f"{host} is an address to listen on, not to call: {to} is asked instead" if to else None


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address, no brackets) is this machine's loopback."""
    name = host.strip().lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def bracketed(host: str) -> str:
    """`host` as it stands in a URL: brackets around IPv6."""
    return f"[{host}]" if ":" in host else host


def _endpoint(place: _Place, api: Api, endpoint_path: str | None, index: int, proxy: str | None) -> Endpoint:
    host = _ANY.get(_plain_address(place.host), place.host)
    base = place.path or ("" if endpoint_path is not None else "/v1")
    target = base + (_ASKS[api] if endpoint_path is None else _checked_path(endpoint_path))
    name = f"{bracketed(host)}:{place.port}"
    return Endpoint(
        index=index,
        name=name,
        base_url=f"{place.scheme}://{name}{base}",
        scheme=place.scheme,
        host=host,
        port=place.port,
        target=target,
        models_target=_api_root(base, target) + "/models",
        root=base.removesuffix("/v1"),
        proxy=None if is_loopback(host) else proxy,
    )


def _api_root(base: str, target: str) -> str:
    """What the model list stands beside: with a path of the user's own, whatever precedes `/chat/completions` in it."""
    path = target.partition("?")[0]
    for ask in _ASKS.values():
        if path.endswith(ask):
            return path.removesuffix(ask)
    return base or "/v1"


def _split(url: str, flag: str) -> _Place:
    text = url.strip()
    if not text:
        raise UserError(f"{flag} is blank: give a URL such as http://127.0.0.1:8000")
    if any(char.isspace() or not char.isprintable() for char in text):
        raise UserError(f"{flag} {url!r} holds a space or control character: remove it")
    scheme_text, separator, rest = text.partition("://")
    if not separator:
        scheme_text, rest = "http", text
    match scheme_text.lower():
        case "http" | "https" as scheme:
            pass
        case _:
            raise UserError(f"{flag} {url!r}: scheme {scheme_text!r} is not http or https")
    cut = re.search(r"[/?#]", rest)
    authority, tail = (rest[: cut.start()], rest[cut.start() :]) if cut else (rest, "")
    if "@" in authority:
        # The value holds a password: it is not repeated.
        raise UserError(f"{flag} holds a user name or password: take it out and give --header or --api-key-env")
    if "?" in tail or "#" in tail:
        raise UserError(f"{flag} {url!r} holds a query or fragment: remove what follows the path")
    host, port = _split_authority(authority, url, flag)
    found = _Place(scheme, _checked_host(host, f"{flag} {url!r}"), PORTS[scheme], _path(tail))
    return found if port is None else _Place(scheme, found.host, _checked_port(port, f"{flag} {url!r}:"), found.path)


def _split_authority(authority: str, url: str, flag: str) -> tuple[str, str | None]:
    """(host, port text or null)."""
    if authority.startswith("["):
        host, closed, after = authority[1:].partition("]")
        if not closed or ":" not in host or (after and not after.startswith(":")):
            raise UserError(f"{flag} {url!r}: an IPv6 address is written [::1]:8000")
        return host, after[1:] if after else None
    if authority.count(":") > 1:
        raise UserError(f"{flag} {url!r}: put an IPv6 address in brackets, as in http://[::1]:8000")
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def _checked_host(host: str, given: str) -> str:
    if not host:
        raise UserError(f"{given}: no host: give a name or an address")
    if ":" in host:
        address, _, zone = host.replace("%25", "%").partition("%")
        try:
            plain = str(ipaddress.IPv6Address(address))
        except ValueError:
            raise UserError(f"{given}: {host!r} is not an IPv6 address") from None
        return f"{plain}%{zone}" if zone else plain
    try:
        name = host.encode("idna").decode("ascii")  # ASCII comes out as it is; a label too long or empty is refused, as the resolver would
    except UnicodeError:
        name = ""
    if not _HOST.match(name):
        raise UserError(f"{given}: {host!r} is not a host name or address")
    return name.lower()


def _checked_port(text: str, given: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65_535):
        raise UserError(f"{given} port {text!r} is not a number from 1 to 65535")
    return int(text)


def _checked_path(path: str) -> str:
    """`--endpoint PATH`: it may carry a query, as some gateways want."""
    if not path.strip("/ ") or "#" in path or any(char.isspace() or not char.isprintable() for char in path):
        raise UserError(f"--endpoint {path!r} is not a path: give one such as /v1/chat/completions")
    before, mark, query = path.partition("?")
    return _path(before) + mark + quote(query, safe=_PATH_SAFE + "?")


def _path(text: str) -> str:
    """One leading slash, none at the end, none doubled; "" for no path. What is no URL character is percent-encoded."""
    return "".join("/" + quote(part, safe=_PATH_SAFE) for part in text.split("/") if part)


def _host_in(given: str) -> str:
    authority = re.split(r"[/?#]", given.strip().partition("://")[2] or given.strip())[0]
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority if authority.count(":") > 1 else authority.partition(":")[0]


def _plain_address(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host
