"""Text to token ids and back: the embedded word tokenizer, or a Hugging Face tokenizer.json. No torch."""

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from scalerlt.errors import UserError
from scalerlt.models.json_object import read_json_object

_WORD_FILE = "word_tokenizer.json"
_HF_FILE = "tokenizer.json"
_HF_CONFIG = "tokenizer_config.json"


class NoTokenizers(UserError):
    """The package that reads a Hugging Face tokenizer is not installed here."""


class Tokenizer(Protocol):
    """What a task needs of a tokenizer. Ids are below `vocab_size`; a model may have more ids than its tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""

    @property
    def pad_token_id(self) -> int | None:
        """The token that fills a batch."""

    def save(self, directory: str | Path) -> None:
        """Writes what `load_tokenizer` reads."""

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; no special token is added or recognised."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens left out, invalid UTF-8 replaced."""


class WordTokenizer:
    """Whole words, else bytes. Ids: 0 `<eos>`, 1 `<pad>`, then the 256 bytes, then the words.

    A word may carry its leading space; it matches only where no letter goes on before or behind it. All else, digits
    too, is encoded as its UTF-8 bytes, so every text comes back as it was.

    Args:
        words: different, not empty; their order is the order of their ids.
    """

    eos_token_id = 0
    pad_token_id = 1
    _first_byte = 2
    _first_word = 2 + 256

    def __init__(self, words: Sequence[str]) -> None:
        if "" in words or len(set(words)) < len(words):
            raise UserError("the words of a tokenizer have to be different and not empty")
        self.words = tuple(words)
        self._ids = {word: self._first_word + index for index, word in enumerate(self.words)}
        longest_first = sorted(self.words, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_whole, longest_first)) or "(?!)")

    @classmethod
    def embedded(cls) -> "WordTokenizer":
        """The tokenizer that ships with the package: 512 ids, made for English word problems in GSM8K's format."""
        return cls.load(Path(__file__).parent / "tiny_ouro")

    @classmethod
    def load(cls, directory: str | Path) -> "WordTokenizer":
        """The tokenizer that `save` wrote to `directory`; a UserError if it cannot be read."""
        path = Path(directory) / _WORD_FILE
        words = read_json_object(path).get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UserError(f"{path}: 'words' has to be a list of strings")
        return cls(words)

    def save(self, directory: str | Path) -> None:
        """Writes word_tokenizer.json to `directory`, which exists."""
        text = json.dumps({"words": self.words}, indent=0) + "\n"
        (Path(directory) / _WORD_FILE).write_text(text, encoding="utf-8")

    @property
    def vocab_size(self) -> int:
        """2 special tokens, 256 bytes and the words."""
        return self._first_word + len(self.words)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, which may be any valid Unicode."""
        ids: list[int] = []
        done = 0
        for match in self._pattern.finditer(text):
            ids += self._bytes(text[done : match.start()])
            ids.append(self._ids[match.group()])
            done = match.end()
        return ids + self._bytes(text[done:])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; special tokens are left out, bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self._token, ids)).decode("utf-8", errors="replace")

    def _bytes(self, text: str) -> list[int]:
        return [self._first_byte + byte for byte in text.encode("utf-8", errors="surrogatepass")]

    def _token(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise UserError(f"token {token} is outside the tokenizer's {self.vocab_size} ids")
        if token < self._first_byte:
            return b""
        if token < self._first_word:
            return bytes([token - self._first_byte])
        return self.words[token - self._first_word].encode("utf-8")


class HfTokenizer:
    """A Hugging Face tokenizer.json; the special ids by name from tokenizer_config.json beside it, if there is one."""

    def __init__(self, directory: str | Path) -> None:
        try:
            from tokenizers import Tokenizer as Implementation
        except ImportError:
            raise NoTokenizers(
                f"{Path(directory) / _HF_FILE}: needs the package tokenizers: pip install 'scalerlt[torch]'"
            ) from None
        path = Path(directory) / _HF_FILE
        text = json.dumps(read_json_object(path))
        try:
            self._tokenizer = Implementation.from_str(text)
        except Exception as error:  # the package raises no narrower class
            raise UserError(f"{path}: not a tokenizer: {error}") from None
        self._directory = Path(directory)
        config = Path(directory) / _HF_CONFIG
        names = read_json_object(config) if config.exists() else {}
        self.eos_token_id = self._special(names, "eos_token")
        self.pad_token_id = self._special(names, "pad_token")

    def save(self, directory: str | Path) -> None:
        """Copies the tokenizer's files to `directory`."""
        for name in (_HF_FILE, _HF_CONFIG):
            if (self._directory / name).exists():
                shutil.copyfile(self._directory / name, Path(directory) / name)

    def _special(self, names: dict[str, Any], key: str) -> int | None:
        name = names.get(key)
        if isinstance(name, dict):
            name = name.get("content")
        return None if name is None else self._tokenizer.token_to_id(name)

    @property
    def vocab_size(self) -> int:
        """Number of ids, special and added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; no template's special tokens are added."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in directory `path`: word_tokenizer.json, else tokenizer.json; a UserError if neither serves."""
    directory = Path(path)
    if (directory / _WORD_FILE).exists():
        return WordTokenizer.load(directory)
    if (directory / _HF_FILE).exists():
        return HfTokenizer(directory)
    raise UserError(f"tokenizer {directory}: holds neither {_WORD_FILE} nor {_HF_FILE}")


def _whole(word: str) -> str:
    """A pattern for `word` where it is not a part of a longer run of letters."""
    before = "(?<![A-Za-z])" if word[0].isalpha() else ""
    behind = "(?![A-Za-z])" if word[-1].isalpha() else ""
    return before + re.escape(word) + behind
