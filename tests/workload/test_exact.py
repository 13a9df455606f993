"""Prompts hit their length to the token, or the miss is reported."""

from collections.abc import Sequence

import pytest

from loadcell.workload import WorkloadSpec, local_tokenizer, open_workload
from loadcell.workload.units import learn_units, run_lengths
from loadcell.workload.vocabulary import WORDS


class CharacterTokenizer:
    """One token a character, but `ab` is one: decoding and encoding at random is no identity."""

    name = "characters"
    exact = True
    specials = 0

    def __init__(self) -> None:
        self.calls = 0

    def count(self, text: str) -> int:
        self.calls += 1
        return len(text) - text.count("ab")

    def counts(self, texts: Sequence[str]) -> list[int]:
        return [self.count(text) for text in texts]

    def encode(self, text: str) -> list[int]:
        self.calls += 1
        return [ord(c) for c in text.replace("ab", "\x01")]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids)).replace("\x01", "ab")


class PairTokenizer(CharacterTokenizer):
    """Two characters a token, wherever words end: counts of words do not add up."""

    name = "pairs"

    def count(self, text: str) -> int:
        self.calls += 1
        return -(-len(text) // 2)

    def encode(self, text: str) -> list[int]:
        self.calls += 1
        return [hash(text[i : i + 2]) for i in range(0, len(text), 2)]


class EvenTokenizer(CharacterTokenizer):
    """Two tokens a character: an odd length cannot be had."""

    name = "even"

    def count(self, text: str) -> int:
        return 2 * len(text)

    def encode(self, text: str) -> list[int]:
        return [n for c in text for n in (ord(c), 0)]


KINDS = ["gibberish", "english", "bos", "metaspace"]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 128, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_every_prompt_re_encodes_to_its_length(tokenizer_folder, kind, length):
    tokenizer = local_tokenizer(str(tokenizer_folder / kind))
    workload = open_workload(WorkloadSpec(input_len=length), tokenizer, chat=True)
    for index in range(50):
        prompt = workload.prompt(index, "measure")
        assert prompt.input_tokens == tokenizer.count(prompt.text) == length
        assert prompt.input_source == "tokenizer"
    assert workload.report().input.off_target == 0


@pytest.mark.parametrize("length", [2, 3, 7, 16, 128, 1000])
def test_tokens_that_span_words_are_hit_all_the_same(tokenizer_folder, length):
    tokenizer = local_tokenizer(str(tokenizer_folder / "spanning"))
    workload = open_workload(WorkloadSpec(input_len=length), tokenizer, chat=True)
    assert all(tokenizer.count(workload.prompt(index, "measure").text) == length for index in range(50))


@pytest.mark.parametrize("kind", KINDS)
def test_shared_prefixes_keep_the_length_exact(tokenizer_folder, kind):
    tokenizer = local_tokenizer(str(tokenizer_folder / kind))
    spec = WorkloadSpec(input_len=40, prefix_len=100, prefix_groups=3, range_ratio=0.5)
    workload = open_workload(spec, tokenizer, chat=True)
    texts = {}
    for index in range(60):
        prompt = workload.prompt(index, "measure")
        assert tokenizer.count(prompt.text) == prompt.input_tokens
        assert 120 <= prompt.input_tokens <= 160
        texts.setdefault(prompt.session, []).append(tokenizer.encode(prompt.text))
    assert sorted(texts) == ["group-0", "group-1", "group-2"]
    for group in texts.values():
        assert len({tuple(ids[:100]) for ids in group}) == 1
        assert len({tuple(ids[:110]) for ids in group}) == len(group)


def test_completions_leave_room_for_the_special_tokens_a_server_adds(tokenizer_folder):
    tokenizer = local_tokenizer(str(tokenizer_folder / "bos"))
    assert tokenizer.specials == 1
    completions = open_workload(WorkloadSpec(input_len=64), tokenizer, chat=False).prompt(0, "measure")
    assert (tokenizer.count(completions.text), completions.input_tokens) == (63, 64)
    chat = open_workload(WorkloadSpec(input_len=64), tokenizer, chat=True).prompt(0, "measure")
    assert (tokenizer.count(chat.text), chat.input_tokens) == (64, 64)


def test_a_tokenizer_that_merges_across_characters_is_hit_exactly():
    tokenizer = CharacterTokenizer()
    workload = open_workload(WorkloadSpec(input_len=128), tokenizer, chat=True)
    tokenizer.calls = 0
    for index in range(1000):
        assert tokenizer.count(workload.prompt(index, "measure").text) == 128
    assert workload.report().input.off_target == 0
    assert tokenizer.calls <= 2100  # one to make, one to check here, hardly a repair


def test_counts_that_do_not_add_up_are_repaired():
    tokenizer = PairTokenizer()
    workload = open_workload(WorkloadSpec(input_len=128), tokenizer, chat=True)
    assert all(tokenizer.count(workload.prompt(index, "measure").text) == 128 for index in range(200))


def test_a_length_that_cannot_be_had_is_reported_as_missed():
    workload = open_workload(WorkloadSpec(input_len=127), EvenTokenizer(), chat=True)
    for index in range(20):
        prompt = workload.prompt(index, "measure")
        assert prompt.input_tokens == EvenTokenizer().count(prompt.text)
        assert abs(prompt.input_tokens - 127) <= 3
    lengths = workload.report().input
    assert (lengths.n, lengths.off_target) == (20, 20)
    assert lengths.least_miss is not None
    assert lengths.most_miss is not None
    assert 1 <= max(-lengths.least_miss, lengths.most_miss) <= 3


def test_prompts_are_diverse_real_words(tokenizer_folder):
    tokenizer = local_tokenizer(str(tokenizer_folder / "english"))
    workload = open_workload(WorkloadSpec(input_len=512), tokenizer, chat=True)
    words = [word for index in range(20) for word in workload.prompt(index, "measure").text.split()]
    assert len(set(words)) > 1000
    assert sum(word in WORDS for word in words) / len(words) > 0.98


def test_word_costs_are_learnt_in_few_calls():
    tokenizer = CharacterTokenizer()
    units = learn_units(tokenizer)
    assert units.words == WORDS
    assert all(cost == tokenizer.count(" " + word) for word, cost in zip(units.words, units.costs, strict=True))
    tokenizer.calls = 0
    learn_units(tokenizer)
    assert tokenizer.calls < 40


@pytest.mark.parametrize(
    ("forward", "backward", "words", "lengths"),
    [
        ([1, 2, 3], [3, 2, 1], 3, [1, 1, 1]),
        ([1, 2, 9, 3], [3, 2, 9, 1], 3, [1, 2, 1]),
        ([5, 6, 7, 5, 8], [5, 8, 5, 6, 7], 2, [3, 2]),
        ([], [], 0, []),
        ([1, 2, 3], [3, 2, 1], 2, []),
        ([1, 2], [2, 1, 1], 2, []),
        ([1, 2, 3], [1, 2, 4], 2, []),
    ],
)
def test_run_lengths(forward, backward, words, lengths):
    assert run_lengths(forward, backward, words) == lengths
