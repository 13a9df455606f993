"""Tokenizers of several kinds, made on the spot."""

import random
from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from loadcell.workload.vocabulary import WORDS


def _lines(words: Sequence[str]) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choice(words) for _ in range(50)) for _ in range(400)]


def _gibberish() -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 8))) for _ in range(1500)]


def byte_level(words: Sequence[str], size: int, *, bos: bool = False) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(_lines(words), trainer)
    if bos:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


def metaspace(size: int, *, spanning: bool = False) -> Tokenizer:
    """As SentencePiece models: the space belongs to the word, and a text begins with one. `spanning`: tokens hold parts of two words."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    if spanning:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>"], show_progress=False, max_token_length=8)
    made.train_from_iterator(_lines(WORDS), trainer)
    return made


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory):
    """A folder for each kind, with its tokenizer.json."""
    root = tmp_path_factory.mktemp("tokenizers")
    kinds = {
        "gibberish": byte_level(_gibberish(), 1200),
        "english": byte_level(WORDS, 3000),
        "bos": byte_level(WORDS, 1500, bos=True),
        "metaspace": metaspace(1500),
        "spanning": metaspace(1500, spanning=True),
    }
    for name, made in kinds.items():
        (root / name).mkdir()
        made.save(str(root / name / "tokenizer.json"))
    return root
