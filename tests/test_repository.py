"""What the repository promises about itself."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import qemrl
import qemrl.tabular
from docs import settings
from qemrl.agents.names import SUMMARIES

ROOT = Path(__file__).parent.parent


def test_constraints_hold_names_and_versions_only():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", line), line


def test_every_public_name_exists_and_has_a_docstring():
    for name in qemrl.__all__:
        assert hasattr(qemrl, name), name
        item = getattr(qemrl, name)
        if inspect.isclass(item) or inspect.isfunction(item):
            assert item.__doc__, name


@pytest.mark.parametrize(("page", "package"), [("estimators.md", qemrl.estimators), ("tabular.md", qemrl.tabular)])
def test_every_public_name_is_on_its_page(page, package):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    missing = [name for name in package.__all__ if name not in text]
    assert not missing


@pytest.mark.parametrize("preset", SUMMARIES)
def test_every_preset_has_a_page_with_its_command_deviations_and_results(preset):
    text = (ROOT / "docs" / "presets" / f"{preset}.md").read_text(encoding="utf-8")
    assert f"qemrl train {preset} --env" in text
    for heading in ("## Use", "## Metrics", "## Deviations", "## Results"):
        assert heading in text
    assert "@@" not in text


@pytest.mark.parametrize("preset", SUMMARIES)
def test_every_setting_of_a_preset_is_on_its_page_with_its_source(preset):
    text = (ROOT / "docs" / "presets" / f"{preset}.md").read_text(encoding="utf-8")
    assert settings.write_page(preset, text) == text, "run: python docs/settings.py"


def test_a_setting_that_no_source_states_is_an_error():
    assert settings.find_source("qr-dqn", "atari", "optimizer.max_gradient_norm", "10.0") == "DQN Zoo"
    assert settings.find_source("iqn", "atari", "learning_starts", "20000") == "DQN Zoo"
    for preset, value in (("iqn", "10.0"), ("qr-dqn", "40.0")):
        with pytest.raises(
            ValueError, match=f"no source in docs/settings.py states .* = {value} for {preset} on atari"
        ):
            settings.find_source(preset, "atari", "optimizer.max_gradient_norm", value)


def test_no_table_of_the_paper_is_a_source_for_a_preset_that_it_does_not_have():
    others = [name for name in SUMMARIES if name not in (*settings.QEM_PAPER, *settings.QEM_PAPER_CRITICS)]
    assert {"dqn", "fqf", "bootstrapped-qr-dqn", "dsac-fqf"} <= set(others)
    for preset in others:
        assert "QEM paper" not in "\n".join(settings.write_table(preset)), preset


def test_settings_of_heads_have_the_sources_of_their_preset():
    find, name = settings.find_source, "representation.head.num_quantiles"
    assert find("bootstrapped-qr-dqn", "atari", name, "200") == "QR-DQN paper"
    assert find("bootstrapped-qr-dqn", "minatar", name, "51") == "Revisiting Rainbow"
    with pytest.raises(ValueError, match=r"states representation\.head\.num_quantiles = 7"):
        find("bootstrapped-qr-dqn", "atari", name, "7")


def test_munchausen_settings_are_on_the_page_of_the_preset_that_has_them():
    assert all(name in "\n".join(settings.write_table("m-iqn")) for name in settings.MUNCHAUSEN)
    assert not any(name in "\n".join(settings.write_table("iqn")) for name in settings.MUNCHAUSEN)


def test_the_python_examples_of_all_pages_run():
    """In a process of their own, in which nothing is checked that users do not have checked."""
    program = ""
    pages = (
        "agents",
        "architecture",
        "callbacks",
        "estimators",
        "networks",
        "observations",
        "own-environment",
        "representations",
        "tabular",
        "tuning",
    )
    for page in ("README.md", *(f"docs/{name}.md" for name in pages)):
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
        assert blocks, page
        joined = "\n".join(blocks)
        program += f"exec(compile({joined!r}, {page!r}, 'exec'), {{'__name__': '__main__'}})\n"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))],
)
def test_links_between_files_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_names_that_the_architecture_links_to_are_in_the_files_that_it_links():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    links = re.findall(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)", text)
    assert len(links) > 15
    for name, file in links:
        scope = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        for part in name.split("."):
            found = [node for node in ast.iter_child_nodes(scope) if part in _defined_names(node)]
            assert found, f"{name} is not in {file}"
            scope = found[0]


def _defined_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def test_contributing_fits_on_a_page():
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 60
