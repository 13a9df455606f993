"""Emptying a service's prefix cache between loads, where its engine can: one POST, optional everywhere. What cannot be done is told, and ends nothing."""

import http.client
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

PATHS: Final = {"vllm": "/reset_prefix_cache", "simulated": "/reset_prefix_cache", "sglang": "/flush_cache"}
_TIMEOUT_S: Final = 10.0


def reset(engine: str, base_urls: Sequence[str], headers: Sequence[tuple[str, str]] = ()) -> str | None:
    """Empty them all; why that was not possible, null where it was. An engine without such a path has no say."""
    path = PATHS.get(engine)
    if path is None:
        return None
    wrong = [why for url in base_urls if (why := _post(url, path, headers)) is not None]
    return None if not wrong else f"prefix caches were not emptied before the load ({wrong[0]}): they are warmed alike instead"


def _post(url: str, path: str, headers: Sequence[tuple[str, str]]) -> str | None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", (parts.path.rstrip("/").removesuffix("/v1")) + path, headers={"Content-Length": "0", **dict(headers)})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"POST {path}: {error}"
    finally:
        connection.close()
    return None if 200 <= status < 300 else f"POST {path}: HTTP {status}"
