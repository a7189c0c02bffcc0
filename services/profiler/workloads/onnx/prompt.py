"""A prompt as the tokens of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from services.core.errors import InvalidModelError, InvalidParameterError

PADDING_TOKENS: Final = ("[PAD]", "<pad>")
OWN_TOKENIZER: Final = Path(__file__).with_name("tokenizer.json")
"""1024 word pieces of English. What is not of it falls to pieces or, of other alphabets, to [UNK]."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of a prompt. ids, type_ids, mask and texts: as many as the sequence is long. mask: 0 for padding, else 1.

    dropped_count: over the model's maximum. padding_count: at the end, where the model takes no shorter sequence.
    """

    ids: tuple[int, ...]
    type_ids: tuple[int, ...]
    mask: tuple[int, ...]
    texts: tuple[str, ...]
    dropped_count: int
    padding_count: int


def read_tokenizer(path: Path, name: str) -> Tokenizer:
    """Read the tokenizer. Raises InvalidModelError: it is not there, or not what the tokenizers library writes."""
    if not path.is_file():
        raise InvalidModelError(
            f"tokenizer file {name}", found="no such file in the bundle", expected="a tokenizer.json", remedy="Upload it with the model."
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no class of its own
        raise InvalidModelError(
            f"tokenizer file {name}",
            found=str(error),
            expected="a file of the tokenizers library",
            remedy="Save it with Tokenizer.save or save_pretrained.",
        ) from error


def check_vocabulary(tokenizer: Tokenizer, tokenizer_name: str, token_count: int | None, model_name: str) -> None:
    """Raise InvalidModelError for a tokenizer with words that the model has no row for. token_count: of the model, None: not known."""
    size = tokenizer.get_vocab_size()
    if token_count is not None and size > token_count:
        raise InvalidModelError(
            f"vocabulary of {tokenizer_name}",
            found=f"{size} tokens",
            expected=f"at most {token_count}, the rows of the table of words in {model_name}",
            remedy="Give the tokenizer that the model was trained with.",
        )


def tokenize(tokenizer: Tokenizer, prompt: str, max_count: int | None, fixed_count: int | None = None) -> Tokens:
    """Return the prompt with what the tokenizer puts around it, cut to max_count tokens; its last special token stays.

    Args:
        fixed_count: of a model that takes sequences of this length alone: what is missing is padding.

    Raises InvalidParameterError: nothing of the prompt becomes a token.
    """
    tokenizer.no_padding()
    tokenizer.no_truncation()
    whole = tokenizer.encode(prompt)
    if all(whole.special_tokens_mask):
        raise InvalidParameterError("prompt", found="text that the tokenizer drops", expected="words", remedy="Give some text.")
    whole_count = len(whole.ids)
    most = min((count for count in (max_count, fixed_count) if count is not None), default=None)
    if most is not None and whole_count > most:
        tokenizer.enable_truncation(most)
        whole = tokenizer.encode(prompt)
    told_count = len(whole.ids)
    if fixed_count is not None:
        padding = next((token for token in PADDING_TOKENS if tokenizer.token_to_id(token) is not None), None)
        whole.pad(fixed_count, pad_id=(padding and tokenizer.token_to_id(padding)) or 0, pad_token=padding or PADDING_TOKENS[0])
    return Tokens(
        ids=tuple(whole.ids),
        type_ids=tuple(whole.type_ids),
        mask=tuple(whole.attention_mask),
        texts=tuple(whole.tokens),
        dropped_count=whole_count - told_count,
        padding_count=len(whole.ids) - told_count,
    )
