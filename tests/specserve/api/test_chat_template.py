"""Conversations with functions and calls, by templates that take tools and by those that do not."""

import json
from pathlib import Path

import pytest

from specserve.api.call import ChatMessage, ChatOptions
from specserve.api.chat_template import ChatTemplate
from specserve.api.tools.tool import Tool, ToolCall
from specserve.errors import Unsupported

TOOL = Tool(name="weather", description="Of a <city>.", parameters={"properties": {"city": {}}})
CALL = ToolCall("call_1", "weather", '{"city": "Paris"}')
CHAT = [
    ChatMessage("user", "How is it in Paris?"),
    ChatMessage("assistant", "", (CALL,)),
    ChatMessage("tool", "21 degrees", tool_call_id="call_1", name="weather"),
]
SIMPLE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
# In the manner of hermes's and Qwen's: marks around calls, and a list of tools.
HERMES = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{{ '\n' }}"
    "{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}"
    "{% if m.role == 'tool' %} ({{ m.tool_call_id }}, {{ m.name }}){% endif %}"
    "{{ '\n' }}{% endfor %}"
)
# In the manner of Llama 3's, which sets `tools` itself where nobody does.
LLAMA = (
    "{% if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}"
    "{% if not tools is defined %}{% set tools = none %}{% endif %}"
    "{% if tools is not none %}{% for t in tools %}{{ t | tojson(indent=4) }}{% endfor %}"
    "{% endif %}"
    '{% for m in messages %}{{ m.role }}{% if "tool_calls" in m %}'
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": '
    "{{ m.tool_calls[0].function.arguments | tojson }}}{% endif %}{% endfor %}"
)
CALLED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OTHER = "{{ tools }}[TOOL_CALLS]{% for m in messages %}{{ m.content }}{% endfor %}"


def template(source: str, wish: str = "auto") -> ChatTemplate:
    return ChatTemplate(source, {}, Path("model"), wish, lambda _: None)


def test_a_template_that_takes_tools_gets_them_and_the_calls():
    found = template(HERMES).render(CHAT, ChatOptions(tools=(TOOL,)))
    assert found == (
        f"<tools>{json.dumps(TOOL.shown())}</tools>\n"
        "user: How is it in Paris?\n"
        f"assistant: {CALLED}\n"
        "tool: 21 degrees (call_1, weather)\n"
    )
    assert "<tools>" not in template(HERMES).render(CHAT, ChatOptions())


def test_a_template_that_sets_tools_itself_takes_them():
    found = template(LLAMA)
    assert found.calling.description == "llama3_json, as the chat template has them"
    text = found.render(CHAT[:2], ChatOptions(tools=(TOOL,)))
    assert '"name": "weather"' in text
    assert text.endswith('assistant{"name": "weather", "parameters": {"city": "Paris"}}')


@pytest.mark.parametrize("arguments", ['{"city": "Par', "[1]", "x"])
def test_arguments_that_are_no_object_stay_text(arguments: str):
    chat = [CHAT[0], ChatMessage("assistant", "", (ToolCall("", "weather", arguments),))]
    assert json.dumps(arguments) in template(HERMES).render(chat, ChatOptions())
    assert arguments in template(SIMPLE).render(chat, ChatOptions())


def test_a_template_that_takes_none_says_all_of_it_in_words():
    found = template(SIMPLE)
    assert found.calling.description.startswith("hermes; the chat template takes no tools, so")
    text = found.render(CHAT, ChatOptions(tools=(TOOL,)))
    system, _, rest = text.partition("user: ")
    assert system.startswith("system: ")
    assert json.dumps(TOOL.shown()) in system
    assert "<tool_call></tool_call>" in system
    assert rest == (
        "How is it in Paris?\n"
        f"assistant: {CALLED}\n"
        "user: <tool_response>\n21 degrees\n</tool_response>\n"
    )
    assert template(SIMPLE).render(CHAT[:1], ChatOptions()) == "user: How is it in Paris?\n"


def test_what_the_system_says_comes_first_and_what_came_back_is_said_at_once():
    calls = ChatMessage("assistant", "Two.", (CALL, CALL))
    chat = [ChatMessage("system", "Be kind."), CHAT[0], calls, CHAT[2], CHAT[2]]
    text = template(SIMPLE).render(chat, ChatOptions(tools=(TOOL,)))
    assert text.startswith("system: Be kind.\n\nYou can call functions")
    assert text.count("system: ") == 1
    assert text.count("user: ") == 2
    assert text.count("</tool_response>") == 2
    assert "assistant: Two.\n<tool_call>" in text


def test_another_format_can_be_wished_for():
    found = template(SIMPLE, "llama3_json")
    assert found.calling.description.startswith("llama3_json, as --tool-call-parser says; the chat")
    text = found.render(CHAT, ChatOptions(tools=(TOOL,)))
    assert 'assistant: {"name": "weather", "parameters": {"city": "Paris"}}\n' in text
    assert "<tool_call>" not in text
    assert template(OTHER, "hermes").calling.form.name == "hermes"


def test_a_format_that_nobody_knows_is_one_clear_error():
    found = template(OTHER)
    assert found.calling.description.startswith("not read: the chat template writes calls in a")
    with pytest.raises(Unsupported, match=r"tools: .*--tool-call-parser hermes or llama3_json"):
        _ = found.calling.form
    assert found.render(CHAT[:1], ChatOptions(tools=(TOOL,))).endswith("Paris?")
