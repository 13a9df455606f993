import json

import pytest

from loadcell.wire.apierror import ApiError, body_error, one_line, refused_field, stream_error


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        ({"error": {"message": "boom", "type": "Timeout", "code": 504}}, ApiError("boom", "504")),
        ({"error": {"message": "boom", "type": "Timeout", "code": "too_slow"}}, ApiError("boom", "too_slow")),
        ({"error": {"message": "boom", "type": "Timeout", "code": None}}, ApiError("boom", "Timeout")),
        ({"error": {"message": "bad", "param": "top_p", "code": 400}}, ApiError("bad", "400", "top_p")),
        ({"error": "boom"}, ApiError("boom")),
        ({"error": "boom", "error_type": "overloaded"}, ApiError("boom", "overloaded")),
        ({"error": {"code": 500}}, ApiError("code 500", "500")),
        ({"object": "error", "message": "boom", "code": 500, "param": None}, ApiError("boom", "500")),
        ({"type": "error", "message": "boom"}, ApiError("boom", "error")),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, ApiError("Overloaded", "overloaded_error")),
        ({"error": True, "message": "boom"}, ApiError("boom")),
        ({"detail": "boom"}, ApiError("boom")),
        ({"message": "boom", "code": 504}, ApiError("boom", "504")),
        ({"message": "boom", "status": "failed"}, ApiError("boom")),
        ({"text": "NETWORK ERROR", "error_code": 50001}, ApiError("code 50001", "50001")),
        ({"text": "a", "error_code": 0}, None),
        ({"message": "hello"}, None),
        ({"choices": [], "detail": "not that"}, None),
        ({"error": ["a", {"message": "b"}]}, ApiError("a; b")),
        ({"error": {"message": {"detail": "deep"}}}, ApiError("deep")),
        ({"error": None, "choices": []}, None),
        ({"error": {}, "choices": []}, None),
        ({"error": ""}, None),
        ({"choices": [], "object": "error"}, None),
        ({"choices": []}, None),
        ("text", None),
        (None, None),
    ],
)
def test_errors_in_a_stream(obj: object, expected: ApiError | None) -> None:
    assert stream_error(obj) == expected


@pytest.mark.parametrize(
    ("obj", "message"),
    [("engine died", "engine died"), ({"message": "engine died"}, "engine died"), ({"detail": "engine died"}, "engine died")],
)
def test_an_event_named_error(obj: object, message: str) -> None:
    error = stream_error(obj, b"error")
    assert error is not None
    assert error.message == message


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b'{"error":{"message":"no such model","code":404}}', "application/json", ApiError("no such model", "404")),
        (b'{"object":"error","message":"too long","code":400,"param":"prompt"}', "", ApiError("too long", "400", "prompt")),
        (b'{"detail":"Not Found"}', "", ApiError("Not Found")),
        (
            b'{"detail":[{"loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}',
            "",
            ApiError("body.stream_options: Extra inputs are not permitted"),
        ),
        (b'{"message":"quota","code":"429"}', "", ApiError("quota", "429")),
        (b'"just text"', "", ApiError("just text")),
        (b"Service\n Unavailable\r\n", "text/plain", ApiError("Service Unavailable")),
        (b"<html><h1>502 Bad Gateway</h1><hr>nginx</html>", "text/html; charset=utf-8", ApiError("502 Bad Gateway nginx")),
        (b" <p>oops</p>", "", ApiError("oops")),
        (b'{"weird": 1}', "", ApiError("{'weird': 1}")),
        (b"", "", None),
        (b"{}", "", None),
        (b"\xff\xfe", "", ApiError("\ufffd\ufffd")),
    ],
)
def test_error_bodies(body: bytes, kind: str, expected: ApiError | None) -> None:
    assert body_error(body, kind) == expected


def test_long_and_hostile_bodies_stay_one_short_line() -> None:
    for body in (b"x" * 100_000, b"<" * 60_000, b"\x1b[31mred\x00" * 100, json.dumps({"error": "\u2028\ud800 " * 999}).encode()):
        error = body_error(body, "text/html")
        assert error is None or (len(error.message) <= 300 and error.message.isprintable())


def test_one_line_shows_the_cut() -> None:
    assert one_line("a" * 301) == "a" * 299 + "…"


@pytest.mark.parametrize(
    ("status", "text", "param", "expected"),
    [
        (400, "stream_options is not supported", None, "stream_options"),
        (400, "Stream options can only be defined when `stream=True`.", None, "stream_options"),
        (422, "body.ignore_eos: Extra inputs are not permitted", None, "ignore_eos"),
        (400, "Unrecognized request argument supplied: ignore_eos", None, "ignore_eos"),
        (400, "Unknown parameter: 'min_tokens'.", "min_tokens", "min_tokens"),
        (400, "min_tokens must be less than or equal to max_tokens=5", "min_tokens", None),
        (400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", "max_tokens", "max_tokens"),
        (400, "Use max_completion_tokens", "max_tokens", "max_tokens"),
        (400, "bad request", "max_tokens", "max_tokens"),
        (400, "must be at least one", "max_tokens", None),
        (400, "Input should be a valid integer", "max_tokens", None),
        (400, "the value exceeds what this model can do", "max_tokens", None),
        (400, "'max_tokens' is too large: 9000. This model's maximum context length is 4096 tokens", None, None),
        (400, "max_completion_tokens is too large", None, None),
        (400, "context length exceeded", None, None),
        (500, "stream_options is not supported", None, None),
        (404, "stream_options", None, None),
    ],
)
def test_which_field_was_refused(status: int, text: str, param: str | None, expected: str | None) -> None:
    assert refused_field(status, text, param) == expected
