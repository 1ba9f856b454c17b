"""What may be offered: refused by name is what cannot be; formats are recognised by templates."""

import pytest

from specserve.api.tools.formats import AUTO, FORMATS, HERMES, LLAMA3_JSON, format_taught_by
from specserve.api.tools.tool import MAX_TOOLS, Tool, ToolUse, tool_use
from specserve.errors import InvalidField
from specserve.settings.resolve import _MODEL_NAMES

F, G = Tool(name="f", field="tools[0]"), Tool(name="g", field="tools[1]")


def named(**fields: object) -> Tool:
    return Tool(**{"name": "f", "field": "tools[0].function"} | fields)  # type: ignore[arg-type]


def nested(depth: int) -> dict:
    schema: dict = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def test_who_may_be_called_and_must():
    assert tool_use([F, G]) == ToolUse(tools=(F, G))
    assert tool_use([F], choice="auto") == ToolUse(tools=(F,))
    assert tool_use([F], choice="required", is_parallel=False) == ToolUse(
        tools=(F,), is_required=True, is_parallel=False
    )
    use = tool_use([F, G], only="g")
    assert use is not None
    assert (use.is_required, use.callable_tools, use.names) == (True, (G,), {"f", "g"})
    assert tool_use([F], choice="none") is None
    assert tool_use([], choice="none") is tool_use([], choice="auto") is tool_use([]) is None


REFUSED = [
    ([F], {"choice": "always"}, "tool_choice: 'always' is not one of none, auto, required, nor an"),
    ([], {"choice": "required"}, "tool_choice: needs tools, of which there are none; send tools"),
    ([], {"only": "f"}, "tool_choice: needs tools"),
    ([F, G], {"only": "h", "only_field": "tool_choice.name"}, "name: 'h' is none of tools; they"),
    ([F, named(field="tools[1]")], {}, r"tools\[1\].name: 'f' is the name of tools\[0\], too"),
    ([named(name="")], {}, r"tools\[0\].function.name: has 0 characters; it must have 1 to 128"),
    ([named(name="f" * 129)], {}, "has 129 characters"),
    ([named(name="a\nb")], {}, "must be printable, without blanks around it"),
    ([named(name=" f")], {}, "without blanks around it"),
    ([named(parameters={"type": "array"})], {}, 'parameters.type: is "array"; arguments are an ob'),
    ([named(parameters={"enum": ["x" * 2**16]})], {}, r"function.parameters: has 655\d\d bytes as"),
    ([named(parameters=nested(100))], {}, "parameters: is nested more than 100 deep; use"),
    ([named(field=f"tools[{i}]") for i in range(MAX_TOOLS + 1)], {}, "tools: has 129 entries; the"),
]


@pytest.mark.parametrize(("tools", "more", "problem"), REFUSED, ids=lambda each: str(each)[:24])
def test_what_cannot_be_is_refused_by_name(tools, more, problem):
    with pytest.raises(InvalidField, match=problem):
        tool_use(tools, **more)


def test_a_template_sees_what_a_model_can_use():
    tool = Tool(name="f", description="Does.", parameters={"b": 1, "a": 2}, strict=True)
    assert list(tool.shown()) == ["type", "function"]
    assert list(tool.shown()["function"]) == ["name", "description", "parameters"]
    assert F.shown() == {"type": "function", "function": {"name": "f"}}


def test_a_template_teaches_a_format():
    hermes = "{% if tools %}<tools>{% endif %} within <tool_call></tool_call> tags"
    llama = '{"name": function name, "parameters": dictionary} {{ \'"parameters": \' }}'
    assert format_taught_by(hermes) is HERMES
    assert format_taught_by(hermes + '"parameters": ') is HERMES
    assert format_taught_by(llama) is LLAMA3_JSON
    assert format_taught_by("{{ '<|python_tag|>' }}") is LLAMA3_JSON
    assert format_taught_by("{{ tools }}[TOOL_CALLS]") is None
    assert format_taught_by("<tool_call>\n<function=example>") is None


def test_names_of_formats_are_those_that_can_be_set():
    assert _MODEL_NAMES["tool_call_parser"] == (AUTO, *FORMATS)
