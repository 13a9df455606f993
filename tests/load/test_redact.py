"""No secret reaches a file, and nothing else is hidden."""

import json

from loadcell.load.redact import HIDDEN, Secrets, names_a_secret, redacted
from loadcell.scenario import SamplingSpec, Scenario, TargetSpec
from loadcell.schedule import ScheduleSpec

SCENARIO = Scenario(
    target=TargetSpec(
        base_urls=("http://127.0.0.1/v1",),
        headers=(("Authorization", "Bearer s3cret-key"), ("X-Org", "tenant-7")),
        proxy="http://user:hunter22@proxy:3128",
    ),
    sampling=SamplingSpec(
        extra_body={
            "api_key": "s3cret-key",
            "max_completion_tokens": 5,
            "stop_token_ids": [1],
            "nested": [{"password": "hunter22", "top_k": 3}],
        }
    ),
    schedule=ScheduleSpec(trace_s=(0.0, 1.0)),
)


def test_values_of_headers_keys_and_passwords_are_hidden():
    text = json.dumps(redacted(SCENARIO))
    for secret in ("s3cret", "tenant-7", "hunter22", "user"):
        assert secret not in text
    spec = redacted(SCENARIO)
    assert spec["target"]["headers"] == [["Authorization", HIDDEN], ["X-Org", HIDDEN]]
    assert spec["target"]["proxy"] == "http://proxy:3128"
    assert spec["sampling"]["extra_body"]["max_completion_tokens"] == 5
    assert spec["sampling"]["extra_body"]["stop_token_ids"] == [1]
    assert spec["sampling"]["extra_body"]["nested"] == [{"password": HIDDEN, "top_k": 3}]
    assert spec["schedule"]["trace_s"] == []
    assert SCENARIO.sampling.extra_body["api_key"] == "s3cret-key"


def test_a_servers_words_are_cleaned_of_what_we_sent_it():
    secrets = Secrets(SCENARIO.target.headers)
    assert secrets.hidden_in("Incorrect API key: s3cret-key (Bearer s3cret-key)") == f"Incorrect API key: {HIDDEN} ({HIDDEN})"
    assert secrets.hidden_in("bad Bearer") == "bad Bearer"
    assert secrets.hidden_in(None) is None


def test_options_of_engines_that_count_tokens_are_no_secrets():
    for name in (
        "max-num-batched-tokens",
        "--max-num-batched-tokens",
        "num_speculative_tokens",
        "tokenizer",
        "tokenizer-mode",
        "skip-tokenizer-init",
    ):
        assert not names_a_secret(name), name
    for name in ("--api-key", "HF_TOKEN", "auth-token", "tokens_api", "AWS_SECRET_ACCESS_KEY"):
        assert names_a_secret(name), name
