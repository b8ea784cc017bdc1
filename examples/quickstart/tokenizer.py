"""The tokenizer: a byte-level BPE of 640 tokens with Qwen3's special tokens, single digits, and the chat's constant
passages as tokens.

The passages (the system turn with Qwen3's tool preamble and this tool's JSON, the opening and closing of a call to it,
the role lines) are what every prompt repeats: ~900 bytes that cost a token each here. Other tools, prompts and texts
are encoded byte by byte or by the trained merges; nothing is lost.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from renderers import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from examples.quickstart.prompt import PATH, WRITE_TOOL, opening_messages, write_message

VOCABULARY: Final = 640
CONTROL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
ROLES: Final = ("user\n", "assistant\n")
EOS: Final = "<|im_end|>"
PADDING: Final = "<|endoftext|>"

_PIECES: Final = r"\\n *| ?[A-Za-z_]+| ?[0-9]|\n+| ?[^\sA-Za-z0-9_\\]+|\s+|\\"


class ChatTokenizer:
    """What `renderers` asks of a tokenizer, over the `tokenizers` library alone."""

    unk_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer, name: str = "quickstart") -> None:
        self.backend = tokenizer
        self.name_or_path = name
        self.eos_token_id: int | None = tokenizer.token_to_id(EOS)

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Any, *_: Any, skip_special_tokens: bool = False, **__: Any) -> str:
        return str(self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self.backend.token_to_id(tokens)
        return [self.backend.token_to_id(token) for token in tokens]


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """The token's id. Raises KeyError when the vocabulary lacks it."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(f"the tokenizer has no token {token!r}; make the model folder again with examples.quickstart.warm_start")
    return found


def load(folder: Path) -> ChatTokenizer:
    """The tokenizer of a model folder."""
    return ChatTokenizer(Tokenizer.from_file(str(folder / "tokenizer.json")), str(folder))


def renderer(tokenizer: ChatTokenizer) -> Qwen3Renderer:
    """The chat format that training and serving share."""
    return Qwen3Renderer(tokenizer, Qwen3RendererConfig())


def _bytes_only() -> Tokenizer:
    """No merges yet: the base alphabet and Qwen3's tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    _shape(tokenizer)
    _add_chat_tokens(tokenizer)
    return tokenizer


def _shape(tokenizer: Tokenizer) -> None:
    """How text is cut before the merges: words, single digits, punctuation runs, an escaped line break with its indentation."""
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()


def _add_chat_tokens(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])


def passages() -> tuple[str, ...]:
    """The constant passages of a prompt, as the renderer itself writes them around the tool's JSON and around a file's text."""
    chat = ChatTokenizer(_bytes_only())
    render = renderer(chat)
    prompt = chat.decode(render.render_ids(opening_messages(""), tools=[WRITE_TOOL]))
    system, _, rest = prompt.removeprefix("<|im_start|>").partition(EOS)
    mark = "@"
    call = chat.decode(render.render_ids([*opening_messages(""), write_message(mark)]))
    opening, _, closing = call.partition("<tool_call>")[2].partition(mark)
    if "# Tools" not in system or PATH not in opening or ROLES[0] not in rest:
        raise ValueError("the renderer writes tools or calls in an unknown way; compare prompt.py with the installed `renderers`")
    return (system, opening, closing.partition("</tool_call>")[0], *ROLES)


def train(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer of exactly VOCABULARY tokens, from texts in the form in which they are rendered (code inside JSON strings).

    Raises ValueError when the texts are too few to fill the vocabulary.
    """
    constant = passages()
    tokenizer = Tokenizer(models.BPE())
    _shape(tokenizer)
    room = VOCABULARY - len(CONTROL) - len(MARKUP) - len(constant)
    trainer = trainers.BpeTrainer(
        vocab_size=room, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(_without(texts, constant), trainer)
    _add_chat_tokens(tokenizer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in constant])
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"trained {tokenizer.get_vocab_size()} tokens, want {VOCABULARY}: give more texts")
    return tokenizer


def _without(texts: Iterable[str], constant: Sequence[str]) -> Iterable[str]:
    """The parts of the texts that no added token covers."""
    for text in texts:
        for passage in (*constant, *CONTROL, *MARKUP):
            text = text.replace(passage, "\0")
        yield from (part for part in text.split("\0") if part)


def tokenizer_config() -> dict[str, Any]:
    """tokenizer_config.json, for those who load the folder with transformers."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": PADDING,
        "bos_token": None,
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
