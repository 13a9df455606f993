"""Usage: make_tiny_model.py OUT: a two-layer Llama's configuration and a byte-level BPE tokenizer with a chat template.

Made offline and from a seed; vLLM serves it with random weights (--load-format dummy). Runs in vLLM's environment, not in ours.
The head size is 64: vLLM's CPU attention refuses 16 only after start-up, with the first request.
"""

import random
import string
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast

CHAT_TEMPLATE = "{% for m in messages %}{{ '<s>' + m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"


def tokenizer(entries: int = 2048) -> PreTrainedTokenizerFast:
    draw = random.Random(0)
    words = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 8))) for _ in range(3000)]
    lines = (" ".join(draw.choices(words, k=50)) for _ in range(2000))
    bpe = Tokenizer(models.BPE(unk_token=None))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=entries, special_tokens=["<s>", "</s>", "<pad>"], initial_alphabet=alphabet)
    )
    made = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    made.chat_template = CHAT_TEMPLATE
    return made


def main(out: Path) -> None:
    made = tokenizer()
    made.save_pretrained(out)
    LlamaConfig(
        vocab_size=len(made),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
