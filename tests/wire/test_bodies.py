import msgspec

from loadcell.wire.bodies import Sampling, chat_body, completions_body, drop_fields


def test_chat_body_of_a_plain_prompt() -> None:
    body = msgspec.json.decode(chat_body("m", "hi", Sampling(max_tokens=8, temperature=0.0)))
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 8,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_messages_are_sent_as_they_are() -> None:
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "t"}]}]
    assert msgspec.json.decode(chat_body("m", turns, Sampling()))["messages"] == turns


def test_completions_body_takes_text_or_ids() -> None:
    assert msgspec.json.decode(completions_body("m", "hi", Sampling()))["prompt"] == "hi"
    assert msgspec.json.decode(completions_body("m", [1, 2], Sampling()))["prompt"] == [1, 2]


def test_optional_fields_and_the_name_of_max_tokens() -> None:
    sampling = Sampling(max_tokens=8, max_tokens_field="max_completion_tokens", top_p=0.9, ignore_eos=True, min_tokens=8)
    body = msgspec.json.decode(chat_body("m", "hi", sampling))
    assert "max_tokens" not in body
    assert (body["max_completion_tokens"], body["top_p"], body["ignore_eos"], body["min_tokens"]) == (8, 0.9, True, 8)


def test_usage_is_asked_for_only_in_a_stream() -> None:
    assert "stream_options" not in msgspec.json.decode(chat_body("m", "hi", Sampling(stream=False)))
    assert "stream_options" not in msgspec.json.decode(chat_body("m", "hi", Sampling(include_usage=False)))


def test_extra_wins() -> None:
    body = msgspec.json.decode(chat_body("m", "hi", Sampling(temperature=0.0, extra={"temperature": 1, "model": "other", "seed": None})))
    assert (body["temperature"], body["model"], body["seed"]) == (1, "other", None)


def test_further_stream_options_keep_the_usage() -> None:
    body = msgspec.json.decode(chat_body("m", "hi", Sampling(extra={"stream_options": {"continuous_usage_stats": True}})))
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_fields_are_dropped_and_nothing_else_changes() -> None:
    body = chat_body("m", "hi \u4e2d", Sampling(max_tokens=8, ignore_eos=True))
    left = msgspec.json.decode(drop_fields(body, ["ignore_eos", "stream_options", "absent"]))
    assert left == {"model": "m", "messages": [{"role": "user", "content": "hi \u4e2d"}], "max_tokens": 8, "stream": True}
