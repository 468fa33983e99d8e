"""Every form of completion that extraction promises to read, in one table; `test_formats_extract` has the oddities.

The promises are those of `docs/` and of `extract_code`; the faults are those that have cost other graders points.
"""

from __future__ import annotations

import pytest

from collimate_rl.formats.extract import extract_code

CODE = "def solve(x):\n    return x + 1"
OLD = "def solve(x):\n    return x"
OUTPUT = "```\n6\n```"

FORMS: dict[str, tuple[str, str]] = {
    # The tag of the fence.
    "python": (f"So:\n```python\n{CODE}\n```\n", CODE),
    "py": (f"So:\n```py\n{CODE}\n```\n", CODE),
    "python3": (f"So:\n```python3\n{CODE}\n```\n", CODE),
    "in capitals": (f"So:\n```PYTHON\n{CODE}\n```\n", CODE),
    "capitalised": (f"So:\n```Py\n{CODE}\n```\n", CODE),
    "a blank after the tag": (f"So:\n```python \n{CODE}\n```\n", CODE),
    "a tab after the tag": (f"So:\n```python3\t\n{CODE}\n```\n", CODE),
    "blanks after the closing mark": (f"So:\n```python\n{CODE}\n```   \nDone.", CODE),
    "carriage returns": (f"So:\n```python\n{CODE}\n```\nDone.\n".replace("\n", "\r\n"), CODE),
    "a blank and carriage returns": (f"```python \n{CODE}\n``` \n{OUTPUT}\n".replace("\n", "\r\n"), CODE),
    # Which of several.
    "the last of the wanted language": (f"```python\n{OLD}\n```\nBetter:\n```python3\n{CODE}\n```\n", CODE),
    "the wanted language before a plain one that parses": (f"```py\n{CODE}\n```\nor\n```\n{OLD}\n```\n", CODE),
    "the wanted language among others": (f"```c++\nint x;\n```\n```python\n{CODE}\n```\n```bash\nmake\n```\n", CODE),
    "the last plain one that parses": (f"```\n{OLD}\n```\n```\n{CODE}\n```\n```\nnot (code\n```\n", CODE),
    "a plain one before text that is no code": (f"```\n{CODE}\n```\nIt prints\n```\nYES 3\n```\n", CODE),
    # One fence is the answer.
    "the only one, plain": (f"So:\n```\n{CODE}\n```\nDone.", CODE),
    "the only one, of another language": (f"So:\n```c++\n{CODE}\n```\nDone.", CODE),
    "the only one, which does not parse": ("So:\n```python\ndef solve(x) return\n```\n", "def solve(x) return"),
    "the only one, plain, which does not parse": ("So:\n```\ndef solve(x) return\n```\n", "def solve(x) return"),
    # Example output after the code.
    "output after a tagged fence": (f"```python\n{CODE}\n```\nOutput:\n{OUTPUT}\n", CODE),
    "output after a plain fence": (f"```\n{CODE}\n```\nOutput:\n{OUTPUT}\n", CODE),
    "output with a tag": (f"```\n{CODE}\n```\nOutput:\n```text\n[1, 2]\n```\n", CODE),
    "output after another language's tag": (f"```code\n{CODE}\n```\nOutput:\n{OUTPUT}\n", CODE),
    # Never closed.
    "unclosed": (f"So:\n```python\n{CODE}", CODE),
    "unclosed and plain": (f"So:\n```\n{CODE}\n", CODE),
    "unclosed with carriage returns": (f"So:\n```python \n{CODE}\n".replace("\n", "\r\n"), CODE),
    "unclosed after a closed one": (f"```python\n{OLD}\n```\nBetter:\n```python\n{CODE}", CODE),
    # Thoughts.
    "after a thought": (f"<think>\n```python\n{OLD}\n```\n</think>\n```python\n{CODE}\n```\n", CODE),
    "after a thought without its beginning": (f"Maybe\n```python\n{OLD}\n```\n</think>\n{CODE}\n", CODE),
    "after several thoughts": (f"<think>a</think>{OLD}<think>b</think>\n```\n{CODE}\n```\n", CODE),
    "in a thought that never ends": (f"<think>\n```python\n{CODE}\n```\n", ""),
    "nothing after the thought": (f"<think>\n```python\n{CODE}\n```\n</think>\n", ""),
    # No fence.
    "prose around the definition": (f"Here it is:\n\n{CODE}\n\nIt adds one.", CODE),
    "code alone": (CODE + "\n", CODE),
    "a body alone": ("    y = x + 1\n    return y\n", "    y = x + 1\n    return y"),
    "a body in a fence": ("```python\n    y = x + 1\n    return y\n```\n", "    y = x + 1\n    return y"),
    "prose alone": ("I don't know.", "I don't know."),
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_form(form: str) -> None:
    completion, code = FORMS[form]
    assert extract_code(completion) == code
