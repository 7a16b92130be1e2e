#!/usr/bin/env python3
"""Makes data/golden/chat: chat templates, ten conversations, and the texts that transformers renders of them.

Usage: python tests/peers/make_chats.py data/golden/chat [SMOLLM2]
Needs: transformers==5.24.0 jinja2. `templates/` holds one template a style, written here after the constructs of published ones
(Qwen 2.5, Qwen 3, Llama 3); `smollm2.jinja` is that of SmolLM2 itself, from the folder that is named. `chats.json` holds the
conversations, `texts.json` for each template the text of each conversation with and without the head of an answer, or the
message of the error that the template raised.
"""
import json
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place, in °C & \"words\" <now>.",
    "parameters": {"type": "object", "required": ["place"], "properties": {
        "place": {"type": "string", "description": "A town's name"},
        "days": {"type": "integer", "minimum": 1, "default": 1},
        "exact": {"type": "boolean", "default": False},
        "chance": {"type": "number", "default": 1e-07}}}}}
ADD = {"type": "function", "function": {
    "name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"b": {"type": "number"}, "a": {"type": "number"}}}}}


def call(name: str, arguments, id: str = "call_1") -> dict:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


CHATS = {
    "system": {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "1+1?"}]},
    "without a system": {"messages": [{"role": "user", "content": "  1+1?\n"}]},
    "several turns": {"messages": [
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "<think>\nwho am I\n</think>\n\nA model."},
        {"role": "user", "content": "Sure?"}]},
    "tools": {"messages": [{"role": "user", "content": "Is it warm in Zürich?"}], "tools": [WEATHER, ADD]},
    "tools and a system": {"messages": [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "2+3?"}], "tools": [ADD]},
    "calls and results": {"messages": [
        {"role": "user", "content": "2+3 and the weather in Łódź?"},
        {"role": "assistant", "content": "", "tool_calls": [call("add", {"b": 3, "a": 2.5}), call("get_weather", {"place": "Łódź", "days": 2}, "call_2")]},
        {"role": "tool", "content": "5.5"}, {"role": "tool", "content": "{\"sky\": \"grey\"}"},
        {"role": "assistant", "content": "5.5, and grey."}, {"role": "user", "content": "Thanks"}], "tools": [WEATHER, ADD]},
    "a call without content": {"messages": [
        {"role": "user", "content": "2+3?"}, {"role": "assistant", "content": None, "tool_calls": [call("add", {"a": 2, "b": 3})]},
        {"role": "tool", "name": "add", "content": "5"}], "tools": [ADD]},
    "an empty system": {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": ""}]},
    "unicode": {"messages": [
        {"role": "system", "content": "日本語で。\u200b"}, {"role": "user", "content": "e\u0301 🦀 <b>&amp;</b> 'q' \"Q\" \\n \u2028 {{ x }} {% if %}\ttab  "}]},
    "a trailing answer": {"messages": [
        {"role": "user", "content": "Count."}, {"role": "assistant", "reasoning": "up\n", "content": "1, 2,"}]},
}

# The templates are ours, of the constructs that the published ones lean on: white space control, namespaces, loops backwards,
# tests of types, string methods, nested objects as JSON, macros, exceptions.
TEMPLATES = {
    # As Qwen 2.5: tools in the system turn, results gathered in one user turn by looking at the neighbours of a message.
    "qwen2.5": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a model of the tests.' }}
    {%- endif %}
    {{- "\\n\\n# Functions\\n\\nThese may be called:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nA call is written <tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a model of the tests.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    # As Qwen 3: the last question is looked for backwards; what was thought before it is left out, what after it is kept.
    "qwen3": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Functions\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    # As Llama 3.1: variables that may not be defined, the first messages cut off the list, one call at a time or an exception.
    "llama3": """{{- bos_token }}
{%- if not shown_with_question is defined %}
    {%- set shown_with_question = true %}
{%- endif %}
{%- if not today is defined %}
    {%- set today = "1 Jan 2025" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set rules = "" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set rules = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- "<|head|>system<|text|>\n\n" + "Date: " + today + "\n" }}
{%- if built_in is defined or tools is not none %}
    {{- "Known: " + ["search", "add", "code"] | reject('equalto', 'code') | join(", ") + "\n\n"}}
{%- endif %}
{{- rules + eos_token }}
{%- if shown_with_question and not tools is none %}
    {%- if messages | length == 0 %}
        {{- raise_exception("No question to show the tools with") }}
    {%- endif %}
    {%- set question = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
    {{- '<|head|>user<|text|>\n\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- question + eos_token }}
{%- endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time, not " ~ message.tool_calls|length) }}
        {%- endif %}
        {%- set function = message.tool_calls[0].function %}
        {{- '<|head|>assistant<|text|>\n\n' -}}
        {{- '{"' + function.name + '": ' }}
        {{- function.arguments | tojson }}
        {{- "}" + eos_token }}
    {%- elif message.role == 'tool' or message.role == 'result' %}
        {{- "<|head|>result<|text|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- eos_token }}
    {%- else %}
        {{- '<|head|>' + message['role'] + '<|text|>\n\n'+ message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|text|>\n\n' }}
{%- endif %}
""",
    # What others lean on: macros, items of objects, filters, ranges, inline conditions, alternation that is checked.
    "others": """{%- macro schema(name, of) -%}
{{ name }}: {{ of.type }}{% if of.default is defined %} = {{ of.default }}{% endif %}
{%- endmacro -%}
{%- set system = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | list -%}
{%- set rest = messages | rejectattr('role', 'equalto', 'system') | list -%}
{{ bos_token }}{% if system and system[0] %}[S]{{ system[0] | trim }}[/S]{% endif %}
{%- if tools is defined and tools is not none %}
{%- for tool in tools %}
{%- set function = tool.function %}

{{ loop.index }}/{{ tools | length }} {{ function.name | upper }}({% for name, of in function.parameters.properties.items() %}{{ schema(name, of) }}{{ ", " if not loop.last else "" }}{% endfor %})
{%- endfor %}
{% endif %}
{%- for message in rest -%}
    {%- if message.role == 'user' -%}
        [U]{{ message.content | trim | replace('\\t', ' ') }}[/U]
    {%- elif message.role == 'assistant' -%}
        {%- for call in message.tool_calls or [] -%}
            [C {{ call.id | default('none') }}]{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}[/C]
        {%- endfor -%}
        {{ (' ' ~ message.content ~ eos_token) if message.content else '' }}
    {%- elif message.role in ['tool', 'ipython'] -%}
        [R{{ ' ' + message.name if message.name is defined }}]{{ message['content'] }}[/R]
    {%- else -%}
        {{ raise_exception('Unknown role: ' + message.role) }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and rest[-1].role == 'assistant' -%}{{ raise_exception('The last message is an answer') }}{%- endif -%}
""",
}


def rendered(template: str, chat: dict, prompt: bool) -> dict:
    try:
        texts, _ = render_jinja_template([chat["messages"]], chat.get("tools"), chat_template=template, add_generation_prompt=prompt, **TOKENS)
        return {"text": texts[0]}
    except Exception as error:
        return {"error": type(error).__name__ if type(error).__name__ != "TemplateError" else str(error)}


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    (out / "templates").mkdir(parents=True, exist_ok=True)
    for name, template in TEMPLATES.items():
        (out / "templates" / f"{name}.jinja").write_text(template)
    if len(sys.argv) == 3:
        (out / "templates" / "smollm2.jinja").write_text((Path(sys.argv[2]) / "chat_template.jinja").read_text())
    texts = {}
    for path in sorted((out / "templates").glob("*.jinja")):
        template = path.read_text()
        texts[path.stem] = {name: {"answer": rendered(template, chat, True), "nothing": rendered(template, chat, False)}
                            for name, chat in CHATS.items()}
    write = lambda name, value: (out / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    write("chats.json", CHATS)
    write("texts.json", {"tokens": TOKENS, "texts": texts})


if __name__ == "__main__":
    main()
