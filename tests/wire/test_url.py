import pytest

from loadcell.errors import UserError
from loadcell.wire.url import any_address_notice, from_host_port, is_loopback, parse_endpoint


@pytest.mark.parametrize(
    ("given", "target", "models", "root"),
    [
        ("http://h:8000", "/v1/chat/completions", "/v1/models", ""),
        ("http://h:8000/", "/v1/chat/completions", "/v1/models", ""),
        ("http://h:8000/v1", "/v1/chat/completions", "/v1/models", ""),
        ("http://h:8000/v1/", "/v1/chat/completions", "/v1/models", ""),
        ("http://h/gw/v2", "/gw/v2/chat/completions", "/gw/v2/models", "/gw/v2"),
        ("http://h/gw/v2/", "/gw/v2/chat/completions", "/gw/v2/models", "/gw/v2"),
        ("http://h/gw//v2//", "/gw/v2/chat/completions", "/gw/v2/models", "/gw/v2"),
        ("http://h/proxy/a/v1", "/proxy/a/v1/chat/completions", "/proxy/a/v1/models", "/proxy/a"),
        ("http://h/v1beta/openai/", "/v1beta/openai/chat/completions", "/v1beta/openai/models", "/v1beta/openai"),
        ("http://h/a%20b/é", "/a%20b/%C3%A9/chat/completions", "/a%20b/%C3%A9/models", "/a%20b/%C3%A9"),
    ],
)
def test_path_is_taken_as_it_stands(given: str, target: str, models: str, root: str) -> None:
    endpoint = parse_endpoint(given, "chat", None, 0)
    assert (endpoint.target, endpoint.models_target, endpoint.root) == (target, models, root)


@pytest.mark.parametrize(
    ("given", "path", "target", "models", "root"),
    [
        ("http://h:8000", "/v1/chat/completions", "/v1/chat/completions", "/v1/models", ""),
        ("http://h:8000/", "v1/completions", "/v1/completions", "/v1/models", ""),
        ("http://h:8000/v1", "/chat/completions", "/v1/chat/completions", "/v1/models", ""),
        ("http://h:8000/gw", "/v1/chat/completions", "/gw/v1/chat/completions", "/gw/v1/models", "/gw"),
        ("http://h:8000", "/generate", "/generate", "/v1/models", ""),
        ("http://h:8000/x", "/c/completions?api-version=3", "/x/c/completions?api-version=3", "/x/c/models", "/x"),
    ],
)
def test_a_path_of_the_users_own_is_appended_to_the_url_as_given(given: str, path: str, target: str, models: str, root: str) -> None:
    endpoint = parse_endpoint(given, "chat", path, 0)
    assert (endpoint.target, endpoint.models_target, endpoint.root) == (target, models, root)


def test_completions_and_index() -> None:
    endpoint = parse_endpoint("https://Example.COM/v1", "completions", None, 3)
    assert endpoint.target == "/v1/completions"
    assert (endpoint.scheme, endpoint.host, endpoint.port, endpoint.index) == ("https", "example.com", 443, 3)
    assert (endpoint.name, endpoint.base_url, endpoint.addresses) == ("example.com:443", "https://example.com:443/v1", ())


@pytest.mark.parametrize(
    ("given", "host", "port", "name"),
    [
        ("localhost:30005", "localhost", 30005, "localhost:30005"),
        ("http://127.0.0.1", "127.0.0.1", 80, "127.0.0.1:80"),
        ("HTTP://h:1", "h", 1, "h:1"),
        ("http://[::1]:8000", "::1", 8000, "[::1]:8000"),
        ("http://[0:0:0:0:0:0:0:1]:8000/v1", "::1", 8000, "[::1]:8000"),
        ("https://[2001:db8::1]", "2001:db8::1", 443, "[2001:db8::1]:443"),
        ("http://[fe80::1%25eth0]:8000", "fe80::1%eth0", 8000, "[fe80::1%eth0]:8000"),
        ("http://0.0.0.0:8000", "127.0.0.1", 8000, "127.0.0.1:8000"),
        ("http://[::]:8000", "::1", 8000, "[::1]:8000"),
        ("http://bücher.example:1", "xn--bcher-kva.example", 1, "xn--bcher-kva.example:1"),
    ],
)
def test_host_and_port(given: str, host: str, port: int, name: str) -> None:
    endpoint = parse_endpoint(given, "chat", None, 0)
    assert (endpoint.host, endpoint.port, endpoint.name) == (host, port, name)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "  ",
        "ftp://h",
        "http://",
        "http:///v1",
        "http://h:",
        "http://h:0",
        "http://h:65536",
        "http://h:8o",
        "http://h:-1",
        "http://h:+80",
        "http://::1:8000",
        "http://[::1",
        "http://[::1]8000",
        "http://[zz]:1",
        "http://h/v1?x=1",
        "http://h/v1#top",
        "http://h?x",
        "http://h/a b",
        "http://h\x00/",
        "http://h_\u2028/",
        "http://a,b:1",
        "http://-\xad-:1",
        "http:h:1",
    ],
)
def test_what_cannot_be_used_is_refused_by_flag(given: str) -> None:
    with pytest.raises(UserError, match="--base-url"):
        parse_endpoint(given, "chat", None, 0)


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(UserError, match="user name or password") as caught:
        parse_endpoint("http://me:hunter2@h:8000", "chat", None, 0)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("path", ["", " ", "/", "/a b", "/a#b", "/a\n"])
def test_a_bad_path_of_the_users_own_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="--endpoint"):
        parse_endpoint("http://h", "chat", path, 0)


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_host_flag_takes_ipv6_with_and_without_brackets(host: str) -> None:
    endpoint = from_host_port(host, 8000, "chat", None, 1)
    assert (endpoint.name, endpoint.base_url, endpoint.host) == ("[::1]:8000", "http://[::1]:8000/v1", "::1")


@pytest.mark.parametrize(("host", "port", "flag"), [("", 1, "--host"), ("a b", 1, "--host"), ("::x", 1, "--host"), ("h", 0, "--port")])
def test_bad_host_or_port_is_refused_by_flag(host: str, port: int, flag: str) -> None:
    with pytest.raises(UserError, match=flag):
        from_host_port(host, port, "chat", None, 0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("http://0.0.0.0:8000", "127.0.0.1"),
        ("http://[::]:8000/v1", "::1"),
        ("::", "::1"),
        ("0.0.0.0", "127.0.0.1"),
        ("http://127.0.0.1:8000", None),
        ("localhost:1", None),
        ("[::1]:1", None),
    ],
)
def test_any_address_is_told(given: str, told: str | None) -> None:
    notice = any_address_notice(given)
    assert (told is None) if notice is None else (told is not None and told in notice)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("api.localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::2", False),
        ("localhost.example.com", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_loopback_never_goes_through_a_proxy() -> None:
    assert parse_endpoint("http://localhost:1", "chat", None, 0, proxy="http://p:3128").proxy is None
    assert parse_endpoint("http://0.0.0.0:1", "chat", None, 0, proxy="http://p:3128").proxy is None
    assert parse_endpoint("http://10.0.0.9:1", "chat", None, 0, proxy="http://p:3128").proxy == "http://p:3128"
