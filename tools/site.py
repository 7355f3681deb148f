"""Hooks of MkDocs (`make docs`): pages that are not in docs/, and links to files outside it.

The README becomes the front page. Each public module of tfvmf gets a page of the API reference.
Source files and notebooks that a page links to become pages too, so that every link of the site
opens from disk and a link to a missing file fails the build.
"""

import ast
import importlib
import json
import os
import pathlib
import posixpath
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

import tfvmf

ROOT = pathlib.Path(__file__).parents[1]
# Pages of the site by their file in the repository; others are in docs/, or below source/.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
PAGES["CHANGELOG.md"] = "CHANGELOG.md"
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".py": "python", ".cff": "yaml", ".yml": "yaml", ".json": "json", ".ipynb": ""}


def on_config(config: MkDocsConfig) -> None:
    """Adds the API reference to the navigation."""
    assert config.nav is not None
    config.nav.append({"API": [{name: f"api/{name}.md"} for name in sorted(modules())]})


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds the pages that are not in docs/."""

    def add(uri: str, content: str, **options: Any) -> None:
        files.append(File.generated(config, uri, content=content, **options))

    waiting = [*PAGES, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    for name in PAGES:
        add(PAGES[name], read(name))
    for name, module in modules().items():
        add(f"api/{name}.md", reference(name, module))
    seen = set(waiting)
    while waiting:
        for target in linked(waiting.pop()):
            if target in seen or target.startswith("docs/"):
                continue
            seen.add(target)
            waiting += [target] * target.endswith(".md")
            add(page_of(target), as_page(target), inclusion=InclusionLevel.NOT_IN_NAV)


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turns links between files of the repository into links between pages."""
    uri = page.file.src_uri
    if uri.startswith("api/"):
        return markdown
    name = {value: key for key, value in PAGES.items()}.get(uri)
    name = name or (uri.removeprefix("source/") if uri.startswith("source/") else f"docs/{uri}")
    name = name.replace(".ipynb.md", ".ipynb")
    if not name.endswith((".md", ".ipynb")) or not (ROOT / name).exists():
        return markdown

    def relink(found: re.Match[str]) -> str:
        target = resolve(name, found[2])
        if not target:
            return found[0]
        here = posixpath.dirname(uri) or "."
        return found[1] + posixpath.relpath(page_of(target), here) + found[3]

    return LINK.sub(relink, markdown)


def read(name: str) -> str:
    """The text of a file of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def resolve(name: str, link: str) -> str:
    """The file that a link in a file leads to, relative to the repository; "" if there is none."""
    if ":" in link:  # https: or data:
        return ""
    target = os.path.relpath((ROOT / name).parent / link, ROOT)
    return target if (ROOT / target).is_file() else ""


def linked(name: str) -> list[str]:
    """The files that a Markdown file links to."""
    return [found for link in LINK.findall(read(name)) if (found := resolve(name, link[1]))]


def page_of(name: str) -> str:
    """The page, or the picture in docs/, that shows a file of the repository."""
    if name in PAGES:
        return PAGES[name]
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return f"source/{name}" if name.endswith(".md") else f"source/{name}.md"


def as_page(name: str) -> str:
    """A file as Markdown: itself, the cells of a notebook, or a block of code."""
    if name.endswith(".md"):
        return read(name)
    if not name.endswith(".ipynb"):
        language = LANGUAGES.get(pathlib.Path(name).suffix, "text")
        meta = "---\nsearch: {exclude: true}\n---\n"
        return f"{meta}\n# {name}\n\n````{language}\n{read(name)}````\n"
    parts = []
    for cell in json.loads(read(name))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            shown = "".join(output.get("text", data.get("text/plain", "")))
            if "image/png" in data:
                parts.append(f"![](data:image/png;base64,{''.join(data['image/png']).strip()})")
            elif shown:
                parts.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(parts)


def modules() -> dict[str, pathlib.Path]:
    """The file of each public module of tfvmf, by its name."""
    found = {}
    for name in tfvmf._MODULES:
        package, module = (ROOT / "tfvmf" / end for end in (f"{name}/__init__.py", f"{name}.py"))
        found[f"tfvmf.{name}"] = package if package.exists() else module
    return found


def reference(name: str, path: pathlib.Path) -> str:
    """A page with a module's docstring and the definition of each name in its `__all__`.

    mkdocstrings does not run code, so it would not see names that a module imports on first use:
    their definitions are looked for in the module and below it.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = [f"# {name}", (ast.get_docstring(tree) or "").strip(), ""]
    places = {}
    below = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else []
    for file in (*below, path):
        inside = str(file.relative_to(ROOT).with_suffix("")).replace(os.sep, ".")
        inside = inside.removesuffix(".__init__")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file == path else []:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    places[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names = [getattr(node, "name", ""), *(getattr(each, "id", "") for each in targets)]
            for defined in names:
                if file == path or defined not in places:
                    places[defined] = f"{inside}.{defined}"
    for public in exported(name, tree):
        lines += [f"::: {places[public]}", "    options:", "      show_root_heading: true"]
        lines += ["      show_root_full_path: false", "      show_root_toc_entry: true", ""]
    return "\n".join(lines)


def exported(name: str, tree: ast.Module) -> list[str]:
    """The names in the `__all__` of a module; without one, its public functions and classes."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            if isinstance(node.value, ast.List):
                return sorted(ast.literal_eval(node.value))
            return sorted(importlib.import_module(name).__all__)  # computed, as it loads lazily
    public = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return sorted(each for each in public if not each.startswith("_"))
