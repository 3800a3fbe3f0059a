"""What is said of a module or file of agents that cannot be loaded."""

import pytest

from agentrt.agents import Registry


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\nos.environ['AGENTRT_TEST_NO_SUCH_KEY']", "line 2: KeyError: 'AGENTRT_TEST_NO_SUCH_KEY'"),
        ("\nfrom pathlib import Path\nPath('/no such file').read_text()", "line 3: FileNotFoundError: "),
        ("from agentrt.agents import Agent\nAgent(name='x')", "line 2: TypeError: "),
        ("x = 1\ndef broken(:\n", "line 2: invalid syntax"),
    ],
)
@pytest.mark.parametrize("folder", ["plain", "importlib"])
def test_an_error_that_a_library_raises_is_shown_where_the_users_file_led_to_it(
    tmp_path, monkeypatch, folder, text, words
):
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    (tmp_path / folder / "shop.py").write_text(text)
    [problem] = Registry.load("shop.py").problems
    assert problem.startswith(f"shop.py, {words}")


def test_an_error_in_a_file_that_lies_beside_is_shown_there(tmp_path):
    beside = tmp_path / f"beside_{tmp_path.name.replace('-', '_')}.py"
    beside.write_text("\nimport os\nos.environ['AGENTRT_TEST_NO_SUCH_KEY']\n")
    (tmp_path / "shop.py").write_text(f"import {beside.stem}")
    [problem] = Registry.load(str(tmp_path / "shop.py")).problems
    assert problem == f"{tmp_path / 'shop.py'}: {beside}, line 3: KeyError: 'AGENTRT_TEST_NO_SUCH_KEY'"


@pytest.mark.parametrize("source", [".", "..", ".shop", "shop.", "shop:shop", "shop.py:shop", "./shop.py:shop"])
def test_what_is_neither_a_module_nor_a_file_is_told_with_what_to_write(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("from agentrt import Agent\nshop = Agent('shop', model='openai:x')")
    [problem] = Registry.load(source).problems
    assert problem == f"{source}: this is neither a module nor a .py file: name one, such as shop or shop.py"
