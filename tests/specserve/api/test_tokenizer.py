"""Incremental text equals the tokenizer library's own decode; folders that are no model."""

import asyncio
import json
import random

import pytest
from tokenizers import Tokenizer

from specserve.api.call import ChatMessage, ChatOptions
from specserve.api.tokenizer import TextTokenizer
from specserve.errors import InvalidField, Unsupported
from specserve.validation import Limits


def test_pieces_of_random_tokens_concatenate_to_the_librarys_decode(model_folder):
    ours = TextTokenizer(model_folder)
    library = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    source = random.Random(2)
    for _ in range(2000):
        token_ids = [source.randrange(330) for _ in range(source.randint(0, 12))]
        detokenizer = ours.detokenizer()
        pieces = [detokenizer.push([token_id]) for token_id in token_ids]
        text = "".join(pieces) + detokenizer.flush()
        assert text == library.decode(token_ids, skip_special_tokens=True)
        assert text == ours.decode(token_ids)


def copy_with(model_folder, folder, name, content):
    for path in model_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / name).write_text(content)
    return folder


def test_a_folder_that_is_no_model_is_one_clear_error(tmp_path):
    with pytest.raises(Unsupported, match=r"model\.target: cannot read .*tokenizer\.json"):
        TextTokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", "not json"])
def test_a_broken_tokenizer_file_is_one_clear_error(model_folder, tmp_path, content):
    folder = copy_with(model_folder, tmp_path, "tokenizer.json", content)
    with pytest.raises(Unsupported, match=r"model\.target: "):
        TextTokenizer(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b"\xff\xfe"),
        ("chat_template.jinja", b"\xff\xfe"),
    ],
)
def test_a_broken_file_beside_the_tokenizer_is_one_clear_error(
    model_folder, tmp_path, name, content
):
    folder = copy_with(model_folder, tmp_path, name, "")
    (folder / name).write_bytes(content)
    with pytest.raises(Unsupported, match=name):
        TextTokenizer(folder)


@pytest.mark.parametrize("templates", [[{"nme": "x"}], [3], [], {}, 5, [{"name": "default"}]])
def test_a_list_of_templates_without_a_default_one_is_none(model_folder, tmp_path, templates):
    config = json.dumps({"chat_template": templates})
    folder = copy_with(model_folder, tmp_path, "tokenizer_config.json", config)
    (folder / "chat_template.jinja").unlink()
    assert not TextTokenizer(folder).has_chat_template


def test_a_token_that_the_model_lacks_is_named(model_folder):
    tokenizer = TextTokenizer(model_folder)
    (token_id,) = asyncio.run(tokenizer.encode("<think more>"))
    tokenizer.limits = Limits(vocab_size=token_id, max_model_len=32, max_samples=1, max_logprobs=1)
    with pytest.raises(InvalidField, match="'<think more>', which the tokenizer knows"):
        asyncio.run(tokenizer.encode("a <think more>"))
    assert asyncio.run(tokenizer.encode("a"))


def test_a_template_cannot_reach_python(model_folder, tmp_path):
    escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    folder = copy_with(model_folder, tmp_path, "chat_template.jinja", escape)
    tokenizer = TextTokenizer(folder)
    with pytest.raises(InvalidField, match="chat: refused by the chat template"):
        asyncio.run(tokenizer.encode_chat([ChatMessage("user", "x")]))


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% for i in range(10**9) %}{% endfor %}", "OverflowError: Range too big"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError: maximum"),
        ("{{ 1 // 0 }}", "ZeroDivisionError: "),
        ("{{ 1 + messages }}", "TypeError: "),
        ("{{ 'x' * 10**17 }}", "MemoryError: "),
        ("{{ nothing | tojson }}", "TypeError: "),
        ("{{ strftime_now(5) }}", "TypeError: "),
    ],
)
def test_a_template_that_fails_is_one_clear_error(model_folder, tmp_path, source, problem):
    folder = copy_with(model_folder, tmp_path, "chat_template.jinja", source)
    tokenizer = TextTokenizer(folder)
    with pytest.raises(Unsupported) as caught:
        asyncio.run(tokenizer.encode_chat([ChatMessage("user", "x")]))
    assert str(caught.value).startswith(f"chat: the model's chat template fails: {problem}")
    assert len(str(caught.value)) < 300


def test_whatever_a_template_refuses_with_is_told(model_folder, tmp_path):
    source = "{{ raise_exception(messages | length) }}"
    tokenizer = TextTokenizer(copy_with(model_folder, tmp_path, "chat_template.jinja", source))
    with pytest.raises(InvalidField, match="chat: refused by the chat template: 1"):
        asyncio.run(tokenizer.encode_chat([ChatMessage("user", "x")]))


def test_a_template_that_python_cannot_compile_is_refused_when_it_is_loaded(model_folder, tmp_path):
    source = "{{ " + "(" * 300 + "1" + ")" * 300 + " }}"
    folder = copy_with(model_folder, tmp_path, "chat_template.jinja", source)
    with pytest.raises(Unsupported, match=r"model\.target: chat template of "):
        TextTokenizer(folder)


def test_clients_text_is_never_a_template(model_folder):
    tokenizer = TextTokenizer(model_folder)
    ids = asyncio.run(tokenizer.encode_chat([ChatMessage("user", "{{ 7 * 7 }}")]))
    assert "{{ 7 * 7 }}" in tokenizer.decode(ids)


@pytest.mark.parametrize("begun", ["end", ">", "the quick", "", "im_end|>\n"])
def test_a_message_is_continued_from_where_it_ends(model_folder, tmp_path, begun):
    """Whatever stands in it stands in what the template writes behind it as well."""
    turn = "{{ each.role }}: {{ each.content | trim }}<|im_end|>\n"
    source = f"{{% for each in messages %}}{turn}{{% endfor %}}"
    tokenizer = TextTokenizer(copy_with(model_folder, tmp_path, "chat_template.jinja", source))
    chat = [ChatMessage("user", "end"), ChatMessage("assistant", begun)]
    options = ChatOptions(begins_answer=False, continues_last=True)
    ids = asyncio.run(tokenizer.encode_chat(chat, options))
    assert tokenizer.decode(ids) == f"user: end<|im_end|>\nassistant: {begun.rstrip()}"


def test_a_template_that_leaves_the_last_message_out_continues_nothing(model_folder, tmp_path):
    folder = copy_with(model_folder, tmp_path, "chat_template.jinja", "{{ messages[0].content }}")
    chat = [ChatMessage("user", "fox"), ChatMessage("assistant", "fox")]
    options = ChatOptions(begins_answer=False, continues_last=True)
    with pytest.raises(InvalidField, match="continue_final_message: the chat template does not"):
        asyncio.run(TextTokenizer(folder).encode_chat(chat, options))


def test_a_text_too_long_for_a_small_pool_says_what_to_raise(model_folder):
    tokenizer = TextTokenizer(model_folder)
    tokenizer.limits = Limits(
        vocab_size=400, max_model_len=32, max_samples=1, max_logprobs=1, fills_pool=True
    )
    with pytest.raises(InvalidField) as caught:
        asyncio.run(tokenizer.encode("x" * 10_000))
    assert caught.value.problem.startswith("has 10000 characters; the limit is ")
    end = "as no more fit into max_model_len 32, all that engine.kv_memory holds"
    assert caught.value.problem.endswith(end)


def test_the_template_may_stand_in_the_tokenizer_config(model_folder, tmp_path):
    config = json.dumps({"chat_template": "{{ messages[0].content }}!", "eos_token": "<eos>"})
    folder = copy_with(model_folder, tmp_path, "tokenizer_config.json", config)
    (folder / "chat_template.jinja").unlink()
    tokenizer = TextTokenizer(folder)
    ids = asyncio.run(tokenizer.encode_chat([ChatMessage("user", "fox")]))
    assert tokenizer.decode(ids) == "fox!"


def test_a_model_without_template_refuses_chat_only(model_folder, tmp_path):
    folder = copy_with(model_folder, tmp_path, "tokenizer_config.json", "{}")
    (folder / "chat_template.jinja").unlink()
    tokenizer = TextTokenizer(folder)
    assert not tokenizer.has_chat_template
    with pytest.raises(Unsupported, match="chat: "):
        asyncio.run(tokenizer.encode_chat([ChatMessage("user", "x")]))
