"""Where the load goes, from flags."""

from typing import Final
from urllib.parse import urlsplit

from loadcell.errors import UserError
from loadcell.flags.pairs import headers
from loadcell.flags.values import Values
from loadcell.scenario import Api, TargetSpec

APIS: Final[dict[str, Api]] = {
    "chat": "chat",
    "completions": "completions",
    "openai-chat": "chat",
    "openai": "completions",
    "vllm": "completions",
}
LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (an address that is asked, not one that is listened on)


def target_spec(values: Values) -> TargetSpec:
    proxy = values["proxy"]
    if proxy is not None:
        _check_url("--proxy", proxy, schemes=("http",))
    if values["insecure"]:
        values.refuse_together("insecure", "ca_file")
    return TargetSpec(
        base_urls=_base_urls(values),
        api=_api(values),
        endpoint_path=_endpoint_path(values),
        model=values["model"],
        served_model_name=values["served_model_name"],
        headers=headers(values["header"] or ()),
        api_key_env=values["api_key_env"],
        ca_file=values["ca_file"],
        insecure=values["insecure"],
        proxy=proxy,
    )


def _base_urls(values: Values) -> tuple[str, ...]:
    if values.said("base_url"):
        values.refuse_together("base_url", "host", "port", "ports")
        urls = tuple(dict.fromkeys(url.strip() for url in values["base_url"]))
        if not urls:
            raise UserError("--base-url: give at least one URL")
        if len(urls) < len(values["base_url"]):
            raise UserError(f"--base-url {' '.join(values['base_url'])}: a service is named twice")
        for url in urls:
            _check_url("--base-url", url, schemes=("http", "https"))
        return urls
    values.refuse_together("port", "ports")
    ports = _ports(values["ports"]) if values.said("ports") else (values["port"],)
    host = _host(values["host"])
    return tuple(f"http://{host}:{port}" for port in ports)


def _host(host: str) -> str:
    """A name or an address as it stands in a URL: IPv6 in brackets, an address to listen on as the loopback it includes."""
    bare = host.removeprefix("[").removesuffix("]")
    if "/" in bare or "@" in bare or bare != bare.strip() or (":" in bare and bare.count(":") == 1):
        raise UserError(f"--host {host}: give a name or an address alone; a URL goes to --base-url, a port to --port")
    bare = LOOPBACK.get(bare, bare)
    return f"[{bare}]" if ":" in bare else bare


def _ports(text: str) -> tuple[int, ...]:
    try:
        ports = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        ports = ()
    if not ports or not all(1 <= port <= 65535 for port in ports):
        raise UserError(f"--ports {text}: give ports in 1..65535, separated by commas")
    if len(set(ports)) < len(ports):
        raise UserError(f"--ports {text}: a port is named twice")
    return ports


def _check_url(flag: str, url: str, schemes: tuple[str, ...]) -> None:
    """UserError for what cannot be a base URL. Credentials in it are refused because it is written to every report."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        parts.port  # noqa: B018 (a property that raises on a port that is none)
    except ValueError as wrong:
        raise UserError(f"{flag} {url}: {wrong}") from None
    if parts.username is not None or parts.password is not None:
        raise UserError(f"{flag}: a URL here carries no user or password; use --header 'Authorization: ...'")
    if parts.scheme not in schemes or not host:
        raise UserError(f"{flag} {url}: give a URL such as {schemes[0]}://127.0.0.1:8000")
    if parts.query or parts.fragment:
        raise UserError(f"{flag} {url}: a base URL has no query and no fragment")


def _endpoint_path(values: Values) -> str | None:
    path: str | None = values["endpoint"]
    if path is not None and (not path.startswith("/") or "#" in path or any(c.isspace() for c in path)):
        raise UserError(f"--endpoint {path}: give a path that begins with /, such as /v1/chat/completions")
    return path


def _api(values: Values) -> Api:
    """What the flags say of the API, which must agree: --endpoint-type, --backend, and the end of --endpoint's path."""
    names = {name: APIS[values[name]] for name in ("endpoint_type", "backend") if values.said(name)}
    path = (values["endpoint"] or "").partition("?")[0].rstrip("/")
    if path.endswith("/completions"):
        names["endpoint"] = "chat" if path.endswith("/chat/completions") else "completions"
    if len(set(names.values())) > 1:
        said = " with ".join(f"{values.spelled(name)} {values[name]}" for name in names)
        raise UserError(f"{said}: one asks chat, the other completions")
    return next(iter(names.values()), "chat")
