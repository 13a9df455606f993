from hypothesis import given
from hypothesis import strategies as st

from loadcell.sim import answers, tokens


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert tokens.decode(tokens.encode(text)) == text


@given(st.lists(st.integers(tokens.FIRST_WORD, tokens.FIRST_WORD + tokens.WORDS - 1)))
def test_words_are_one_token_each_in_any_order(ids: list[int]) -> None:
    assert tokens.encode(tokens.decode(ids)) == ids


@given(st.text(), st.text(alphabet=st.characters(exclude_characters=" ")))
def test_counts_add_up_at_spaces(left: str, right: str) -> None:
    assert tokens.encode(left + " " + right) == tokens.encode(left) + tokens.encode(" " + right)


@given(st.integers(tokens.FIRST_WORD, tokens.FIRST_SPECIAL - 1) | st.integers(0, 64))
def test_ids_of_letters_and_marks_are_the_tokens_of_their_own_text(token: int) -> None:
    assert tokens.encode(tokens.token_bytes(token).decode()) == [token]


def test_english_runs_at_about_three_characters_a_token() -> None:
    text = "The quick brown fox jumps over the lazy dog while nobody is looking at it."
    assert 2.5 < len(text) / len(tokens.encode(text)) < 4


def test_chat_costs_two_tokens_a_message_and_one_for_the_prompt() -> None:
    content = tokens.encode("Hello there")
    assert len(tokens.encode_chat([("user", "Hello there")])) == len(content) + 3
    assert len(tokens.encode_chat([("system", ""), ("user", "Hello there")], generation_prompt=False)) == len(content) + 4


def test_the_engines_own_words_are_one_token_each() -> None:
    assert tokens.encode(b"".join(answers.RING_TEXT).decode()) == answers.RING_IDS
    assert {len(text) for text in answers.RING_TEXT} == {4}
    assert answers.ring_ids(answers.RING - 2, 4) == [*answers.RING_IDS[-2:], *answers.RING_IDS[:2]]
