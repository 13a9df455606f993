"""A tokenizer.json on disk -> exact counts, through the `tokenizers` library (imported when the first one is opened)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from loadcell.errors import UserError
from loadcell.workload.tokenizer import Tokenizer, WordTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer as Library


class FileTokenizer:
    """Counts as the model's own tokenizer does; text that looks like a special token counts as one, as on a server."""

    exact = True

    def __init__(self, path: str, library: Library) -> None:
        self.name = path
        self.specials = library.num_special_tokens_to_add(is_pair=False)
        self._encode = library.encode
        self._decode = library.decode

    def count(self, text: str) -> int:
        return len(self._encode(text, add_special_tokens=False))

    def counts(self, texts: Sequence[str]) -> list[int]:
        # Not encode_batch: its thread pool warns and locks up in processes forked later.
        return [len(self._encode(text, add_special_tokens=False)) for text in texts]

    def encode(self, text: str) -> list[int]:
        return self._encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._decode(list(ids), skip_special_tokens=False)


def open_file_tokenizer(path: str) -> FileTokenizer:
    """The tokenizer in `path`, a tokenizer.json or the folder that holds one. UserError, naming --tokenizer, when it cannot be used."""
    file = Path(path)
    if file.is_dir():
        file /= "tokenizer.json"
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(
            f"--tokenizer {path}: cannot read {file} ({error.strerror}); give a tokenizer.json or its folder, 'server' or 'words'"
        ) from error
    _check_form(path, file, content)
    from tokenizers import Tokenizer as Library

    try:
        library = Library.from_str(content.decode())
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"--tokenizer {path}: {file} is no tokenizer that can be loaded ({error})") from error
    library.no_truncation()
    library.no_padding()
    return FileTokenizer(path, library)


def local_tokenizer(name: str) -> Tokenizer:
    """`words`, or the tokenizer in a file or folder. The server's own lives with the client."""
    return WordTokenizer() if name == "words" else open_file_tokenizer(name)


def _check_form(path: str, file: Path, content: bytes) -> None:
    try:
        form = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"--tokenizer {path}: {file} is not JSON ({error})") from error
    if "model" not in form:
        raise UserError(f"--tokenizer {path}: {file} has no 'model'; a tokenizer.json of the `tokenizers` library is needed")
