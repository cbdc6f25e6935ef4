import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from scalerlt.errors import UserError
from scalerlt.models.tokenizer import HfTokenizer, WordTokenizer, load_tokenizer
from scalerlt.tasks.arithmetic import DIFFICULTIES, VOCABULARY, arithmetic
from scalerlt.tasks.prompt import Prompt

TOKENIZER = WordTokenizer.embedded()
ANY_TEXT = st.text() | st.lists(
    st.sampled_from([*TOKENIZER.words, "a", "Z", " ", "\n", "3", "é", "日", "🧮", "<eos>", "<pad>"])
).map("".join)


def test_512_ids_with_eos_and_pad_first() -> None:
    assert TOKENIZER.vocab_size == 512
    assert (TOKENIZER.eos_token_id, TOKENIZER.pad_token_id) == (0, 1)


@given(ANY_TEXT)
@settings(max_examples=300)
def test_every_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(2 <= token < 512 for token in ids)
    assert len(ids) <= len(text.encode())


@given(st.lists(st.integers(0, 511)))
def test_every_sequence_of_ids_is_a_text(ids: list[int]) -> None:
    text = TOKENIZER.decode(ids)
    assert text == TOKENIZER.decode([token for token in ids if token >= 2])


def test_special_tokens_are_never_read_from_text() -> None:
    assert TOKENIZER.decode([0, *TOKENIZER.encode("<eos>"), 1]) == "<eos>"


def pieces(text: str) -> list[str]:
    return [TOKENIZER.decode([token]) for token in TOKENIZER.encode(text)]


def test_words_carry_their_space_and_digits_stand_alone() -> None:
    assert pieces("Tom has 12 apples.\n#### 12") == [
        "Tom", " has", " ", "1", "2", " apples", ".", "\n", "####", " ", "1", "2",
    ]  # fmt: skip
    assert not any(re.search(r"\d", word) for word in TOKENIZER.words)


def test_a_word_is_no_part_of_a_longer_one() -> None:
    assert " apples" in TOKENIZER.words
    assert pieces(" applesauce") == list(" applesauce")
    assert pieces("aTom") == list("aTom")
    assert pieces(" apples, apples") == [" apples", ",", " apples"]


def test_all_of_the_arithmetic_task_is_whole_tokens() -> None:
    words = {word.strip() for word in TOKENIZER.words}
    assert {word for word in VOCABULARY if word.isalpha()} <= words
    for difficulty in DIFFICULTIES:
        for problem in arithmetic("train", difficulty, 0, 300):
            text = f"{Prompt().render(problem.question)} {problem.answer}"
            assert not [piece for piece in pieces(text) if len(piece) == 1 and piece.isalpha()]


def test_saving_and_loading(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, WordTokenizer)
    assert loaded.words == TOKENIZER.words
    assert loaded.encode(" Tom +") == TOKENIZER.encode(" Tom +")


def test_a_hugging_face_tokenizer(tmp_path: Path) -> None:
    real = Tokenizer(
        models.BPE(vocab={"<|endoftext|>": 0, "<|im_end|>": 1, "a": 2, "b": 3, "ab": 4}, merges=[("a", "b")])
    )
    real.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    real.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    real.save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, HfTokenizer)
    assert loaded.vocab_size == 5
    assert (loaded.eos_token_id, loaded.pad_token_id) == (1, 0)
    assert loaded.encode("abba") == [4, 3, 2]
    assert loaded.decode([4, 1, 3]) == real.decode([4, 3])
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(tmp_path).eos_token_id is None


def test_a_tokenizer_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds neither word_tokenizer.json nor tokenizer.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(UserError, match=r"tokenizer.json: not a tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "word_tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"word_tokenizer.json: cannot be read as JSON"):
        load_tokenizer(tmp_path)
    for content, message in (('{"words": [1]}', "list of strings"), ('{"words": ["a", "a"]}', "different")):
        (tmp_path / "word_tokenizer.json").write_text(content)
        with pytest.raises(UserError, match=message):
            load_tokenizer(tmp_path)


def test_an_id_outside_is_refused() -> None:
    with pytest.raises(UserError, match="token 512"):
        TOKENIZER.decode([512])


def test_it_needs_neither_torch_nor_another_package() -> None:
    code = (
        "import sys; from scalerlt.models.tokenizer import WordTokenizer; WordTokenizer.embedded().encode('a');"
        "import scalerlt.models.config; print({'torch', 'tokenizers', 'numpy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
