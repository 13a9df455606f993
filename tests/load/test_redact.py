"""What a server repeats of what we sent it."""

import pytest

from loadcell.load.redact import HIDDEN, Secrets

KEY = "sk-0123456789"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (f"bad key {KEY}", f"bad key {HIDDEN}"),
        (f"got 'Bearer {KEY}'", f"got '{HIDDEN}'"),
        (f"{KEY}{KEY}", f"{HIDDEN}{HIDDEN}"),
        ("Bearer what", "Bearer what"),
        ("version 2024", "version 2024"),
        ("", ""),
        (None, None),
    ],
)
def test_values_of_headers_are_hidden_whole_and_by_word(said: str | None, kept: str | None) -> None:
    assert Secrets([("Authorization", f"Bearer {KEY}"), ("X-Version", "2024")]).hidden_in(said) == kept


def test_without_headers_nothing_is_hidden() -> None:
    assert Secrets([]).hidden_in("as it stands") == "as it stands"
