"""Where the load goes, from flags."""

from typing import Final
from urllib.parse import urlsplit

from loadcell.errors import UserError
from loadcell.flags.pairs import headers
from loadcell.flags.values import Values
from loadcell.scenario import Api, TargetSpec
from loadcell.wire.url import from_host_port, parse_endpoint

APIS: Final[dict[str, Api]] = {
    "chat": "chat",
    "completions": "completions",
    "openai-chat": "chat",
    "openai": "completions",
    "vllm": "completions",
}


def target_spec(values: Values) -> TargetSpec:
    values.refuse_together("insecure", "ca_file")
    api = _api(values)
    return TargetSpec(
        base_urls=_base_urls(values, api),
        api=api,
        endpoint_path=values["endpoint"],
        model=values["model"],
        served_model_name=values["served_model_name"],
        headers=headers(values["header"] or ()),
        api_key_env=values["api_key_env"],
        ca_file=values["ca_file"],
        insecure=values["insecure"],
        proxy=_proxy(values["proxy"]),
    )


def _base_urls(values: Values, api: Api) -> tuple[str, ...]:
    """The services' base URLs as given, each one checked; host and ports as URLs."""
    path = values["endpoint"]
    if values.said("base_url"):
        values.refuse_together("base_url", "host", "port", "ports")
        urls = tuple(values["base_url"])
        asked = [parse_endpoint(url, api, path, index) for index, url in enumerate(urls)]
    else:
        values.refuse_together("port", "ports")
        ports = _ports(values["ports"]) if values.said("ports") else (values["port"],)
        asked = [from_host_port(values["host"], port, api, path, index) for index, port in enumerate(ports)]
        urls = tuple(f"{endpoint.scheme}://{endpoint.name}" for endpoint in asked)
    if not urls:
        raise UserError("--base-url: give at least one URL")
    if len({(endpoint.base_url, endpoint.target) for endpoint in asked}) < len(asked):
        raise UserError(f"{'--base-url' if values.said('base_url') else '--ports'} {' '.join(urls)}: a service is named twice")
    return urls


def _ports(text: str) -> tuple[int, ...]:
    try:
        ports = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        ports = ()
    if not ports:
        raise UserError(f"--ports {text}: give ports separated by commas, such as 30005,30006")
    return ports


def _proxy(url: str | None) -> str | None:
    """UserError for what is no HTTP proxy. Credentials in it are refused: the proxy is written to every report."""
    if url is None:
        return None
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise UserError("--proxy: a URL here carries no user or password")
    if parts.scheme != "http" or not parts.hostname:
        raise UserError(f"--proxy {url}: give an HTTP proxy such as http://proxy:3128")
    return url


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
