"""Names become addresses once, the first of them one that accepts."""

import socket

import pytest

from loadcell.client.resolve import resolve
from loadcell.errors import UserError
from loadcell.records import Address
from loadcell.wire.url import parse_endpoint


def parsed(url: str, proxy: str | None = None):
    return parse_endpoint(url, "chat", None, 0, proxy)


def test_an_address_stands_as_it_is():
    assert resolve(parsed("http://127.0.0.1:8123/v1")).addresses == (Address(socket.AF_INET, "127.0.0.1", 8123),)
    assert resolve(parsed("http://[::1]:8123/v1")).addresses == (Address(socket.AF_INET6, "::1", 8123),)


def test_the_family_that_listens_comes_first():
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        with socket.create_server((host, 0), family=family) as listener:
            found = resolve(parsed(f"http://localhost:{listener.getsockname()[1]}/v1")).addresses
            families = {address.family for address in found}
            if family in families:
                assert found[0].family == family


def test_a_name_that_does_not_resolve_has_no_addresses():
    assert resolve(parsed("http://no-such-host.invalid:8000/v1")).addresses == ()


def test_with_a_proxy_its_address_is_the_one_to_connect_to():
    for proxy in ("http://127.0.0.1:3128", "127.0.0.1:3128", "http://user:word@127.0.0.1:3128/"):
        assert resolve(parsed("http://model.invalid:8000/v1", proxy)).addresses == (Address(socket.AF_INET, "127.0.0.1", 3128),)
    assert resolve(parsed("http://model.invalid:8000/v1", "http://127.0.0.1")).addresses[0].port == 80


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "https://127.0.0.1:3128", "http://"])
def test_what_is_no_http_proxy_is_refused(proxy):
    with pytest.raises(UserError, match=r"--proxy .* is not an HTTP proxy"):
        resolve(parsed("http://model.invalid:8000/v1", proxy))
