"""Names -> socket addresses, once, before the run: no request ever waits for DNS, nor for an address family that nobody listens on."""

import socket
from urllib.parse import urlsplit

import msgspec

from loadcell.errors import UserError
from loadcell.records import Address, Endpoint

_TRIAL_S = 1.0


def resolve(endpoint: Endpoint) -> Endpoint:
    """The endpoint with the addresses to connect to (its proxy's where it has one), the first of them known to accept where any does.

    A name that does not resolve gives an endpoint without addresses: its requests fail as `dns_error`, which is data.
    """
    host, port = _peer(endpoint)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    addresses = list(dict.fromkeys(Address(family=int(family), host=str(where[0]), port=int(where[1])) for family, _, _, _, where in found))
    if _is_localhost(host):
        # Both loopbacks, whatever this machine's hosts file knows of them (RFC 6761, 6.3).
        both = Address(int(socket.AF_INET), "127.0.0.1", port), Address(int(socket.AF_INET6), "::1", port)
        addresses += [address for address in both if address not in addresses]
    if len(addresses) > 1:
        # `localhost` is ::1 and 127.0.0.1, and servers often listen on one: try each here, not at every request.
        accepting = next((address for address in addresses if _accepts(address)), None)
        if accepting is not None:
            addresses = [accepting] + [address for address in addresses if address != accepting]
    return msgspec.structs.replace(endpoint, addresses=tuple(addresses))


def _peer(endpoint: Endpoint) -> tuple[str, int]:
    if endpoint.proxy is None:
        return endpoint.host, endpoint.port
    parts = urlsplit(endpoint.proxy if "//" in endpoint.proxy else f"http://{endpoint.proxy}")
    if parts.scheme != "http" or not parts.hostname:
        raise UserError(f"--proxy {endpoint.proxy!r} is not an HTTP proxy: give http://HOST:PORT")
    return parts.hostname, parts.port or 80


def _is_localhost(host: str) -> bool:
    name = host.lower().rstrip(".")
    return name == "localhost" or name.endswith(".localhost")


def _accepts(address: Address) -> bool:
    try:
        with socket.socket(address.family, socket.SOCK_STREAM) as sock:
            sock.settimeout(_TRIAL_S)
            return sock.connect_ex((address.host, address.port)) == 0
    except OSError:  # a machine without that family
        return False
