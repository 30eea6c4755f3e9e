"""CONTRIBUTING.md and docs/recipes.md: the files that they name are there, and so are the targets of make."""
import re
from pathlib import Path

TOP = Path(__file__).parents[2]
TEXT = (TOP / "CONTRIBUTING.md").read_text()
RECIPES = (TOP / "docs/recipes.md").read_text()
FOLDERS = (
    "engine/seglog", "engine/seglog/verification", "engine/seglog/log", "engine/seglog/reading", "engine/seglog/stores",
    "engine/seglog/endpoint", "engine/seglog/aio", "tools", "tests",
)


def test_every_file_that_a_recipe_names_is_there():
    named = set(re.findall(r"`([\w/.-]+(?:/|\.(?:py|md|toml|pyi|pyx)))`", TEXT + RECIPES))
    assert len(named) > 40
    missing = {name for name in named if not any((TOP / folder / name).exists() for folder in (".", *FOLDERS))}
    assert not missing


def test_the_examples_of_recipes_stand_in_the_code():
    examples = re.findall(r"^```python\n(.*?)^```", RECIPES, re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        for name, lines in re.findall(r"^# ([\w/]+\.py)[: ].*\n(?:# .*\n)?((?:[^#].*\n)+)", example, re.MULTILINE):
            code = (TOP / name).read_text()
            for line in lines.splitlines():
                assert f"\n{line}" in code, f"docs/recipes.md quotes this line of {name}: change it there, too: {line}"


def test_every_target_that_is_named_is_one_of_make():
    made = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^    |`)make ([a-z-]+)[ `]", TEXT, re.MULTILINE))
    assert len(named) > 10
    assert named <= made
