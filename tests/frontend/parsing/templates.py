"""What tells the chat templates of some models apart, as they are published."""

QWEN2 = r"""{%- if tools %}<tools>{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}</tools>{%- endif %}
{{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>" }}"""
QWEN3 = QWEN2 + r"""{%- if '</think>' in content %}{%- endif %}{{- '<think>\n\n</think>\n\n' }}"""
QWEN3_CODER = r"""{%- if tools %}{{- '<tool_call>\n<function=example>\n"arguments"' }}{%- endif %}"""
LLAMA31 = r"""{%- if tools is not none %}{{- "<|python_tag|>" + tool_call.name + ".call(" }}{%- endif %}"""
LLAMA32 = r"""{%- if tools is not none %}{%- endif %}{%- if message.role == "ipython" %}{%- endif %}
{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}"""
MISTRAL = r"""{%- if tools is defined %}[AVAILABLE_TOOLS]{%- endif %}{{- "[TOOL_CALLS] [" }}"""
R1 = r"""{%- set content = message['content'].split('</think>')[-1] %}{{ '<think>\n' }}"""
