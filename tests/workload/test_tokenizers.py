"""Tokenizers of this machine: words, and files."""

import json
from pathlib import Path

import pytest

from loadcell.errors import UserError
from loadcell.workload import WordTokenizer, local_tokenizer


def test_words_are_counted_at_white_space():
    tokenizer = local_tokenizer("words")
    assert isinstance(tokenizer, WordTokenizer)
    assert tokenizer.counts(["", " a\tb\n c ", "one"]) == [0, 3, 1]
    assert not tokenizer.exact
    for ask in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([1])):
        with pytest.raises(NotImplementedError, match="estimate"):
            ask()


def test_a_file_or_its_folder(tokenizer_folder: Path):
    folder = local_tokenizer(str(tokenizer_folder / "english"))
    file = local_tokenizer(str(tokenizer_folder / "english" / "tokenizer.json"))
    text = "the river under the bridge"
    assert folder.encode(text) == file.encode(text)
    assert folder.count(text) == folder.counts([text])[0] == len(folder.encode(text))
    assert folder.decode(folder.encode(text)) == text
    assert folder.exact


def test_special_tokens_are_told_apart_from_content(tokenizer_folder: Path):
    tokenizer = local_tokenizer(str(tokenizer_folder / "bos"))
    assert tokenizer.specials == 1
    assert tokenizer.count("water") == len(tokenizer.encode("water"))
    assert 0 not in tokenizer.encode("water")


def test_a_stored_truncation_or_padding_is_ignored(tokenizer_folder: Path, tmp_path: Path):
    form = json.loads((tokenizer_folder / "english" / "tokenizer.json").read_text())
    form["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    form["padding"] = {"strategy": {"Fixed": 99}, "direction": "Right", "pad_to_multiple_of": None}
    form["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(form))
    assert 8 <= local_tokenizer(str(tmp_path)).count("one two three four five six seven eight") < 99


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "No such file or directory"),
        (b"not json", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[1]", "is not JSON"),
        (b"{}", "has no 'model'"),
        (b'{"model": {"type": "unheard of"}}', "is no tokenizer that can be loaded"),
    ],
)
def test_a_file_that_cannot_be_used_names_the_flag(tmp_path: Path, content, what):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    for given in (path, tmp_path):
        with pytest.raises(UserError) as refusal:
            local_tokenizer(str(given))
        assert str(refusal.value).startswith(f"--tokenizer {given}: ")
        assert what in str(refusal.value)
        assert "\n" not in str(refusal.value)
