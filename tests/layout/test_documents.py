"""What the pages promise is there: files they link to, verbs of make, commands and their options."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import typer.main

from quorum.cli.main import app
from support.repository import ROOT

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
SECTION = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
MAKE = re.compile(r"(?:`|^    |&& )make ([a-z]+)", re.MULTILINE)
COMMAND = re.compile(r"(?:^    |`)quorum ((?:[a-z][a-z-]* ?)+)([^`\n#]*)", re.MULTILINE)


def commands() -> dict[str, set[str]]:
    """Every command by its words, with its options."""
    found: dict[str, set[str]] = {}

    def walk(words: tuple[str, ...], command: object) -> None:
        children = getattr(command, "commands", {})
        options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}  # type: ignore[attr-defined]
        found[" ".join(words)] = options
        for name, child in children.items():
            walk((*words, name), child)

    walk((), typer.main.get_command(app))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def anchors(text: str) -> set[str]:
    """The names by which links reach the headings of a page: lower case, hyphens for spaces, no other signs. A heading
    that occurs again has a number."""
    found: set[str] = set()
    for heading in HEADING.findall(text):
        words = re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", heading.lower()))
        name = words.strip().replace(" ", "-")
        again = sum(
            each == name or re.fullmatch(rf"{re.escape(name)}-\d+", each) is not None for each in found
        )
        found.add(f"{name}-{again}" if again else name)
    return found


def lost_sections(page: Path, text: str) -> list[str]:
    """Links of a page to headings that do not exist."""
    lost = []
    for file, section in SECTION.findall(text):
        target = page.parent / file if file else page
        if "://" in file or target.suffix != ".md":
            continue
        content = target.read_text(encoding="utf-8") if file else text
        if section not in anchors(content):
            lost.append(f"{file}#{section}")
    return lost


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings(page: Path) -> None:
    assert lost_sections(page, page.read_text(encoding="utf-8")) == []


def test_a_link_to_a_heading_that_is_gone_would_be_noticed() -> None:
    text = (
        "# Disks\n\n## A member's `disk`\n\n[here](#a-members-disk) [there](#a-disk) [b](bulk.md#nothing)\n"
    )
    assert lost_sections(ROOT / "docs" / "client.md", text) == ["#a-disk", "bulk.md#nothing"]


def test_the_verbs_of_make_exist() -> None:
    named = {verb for page in PAGES for verb in MAKE.findall(page.read_text(encoding="utf-8"))}
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"check", "test", "demo"} <= named
    assert named - targets == set()


def test_the_readmes_test_command_is_what_ci_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make check && make test" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert [line for line in script.splitlines() if line.startswith("make")] == ["make check", "make test"]
    assert subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=False).returncode == 0
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_commands_and_options_in_the_pages_exist() -> None:
    known = commands()
    known["bench"] |= {"--json"}  # its options are those of quorum.bench.command
    problems = []
    count = 0
    for page in PAGES:
        for words, rest in COMMAND.findall(page.read_text(encoding="utf-8")):
            command = _longest(words.split(), known)
            count += 1
            if command is None:
                problems.append(f"{page.name}: there is no command quorum {words}")
                continue
            options = [
                part.split("=")[0] for part in rest.split() if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", part)
            ]
            if command.startswith("bench"):
                continue
            problems += [
                f"{page.name}: quorum {command} has no {each}"
                for each in options
                if each not in known[command]
            ]
    assert problems == []
    assert count > 15


def _longest(words: list[str], known: dict[str, set[str]]) -> str | None:
    """The command that these words begin with; None if not even the first one is known."""
    for length in range(len(words), 0, -1):
        if " ".join(words[:length]) in known:
            return " ".join(words[:length])
    return None


OF_SPARK = (
    "Failed to find the data source: quorum",
    "Python worker failed to connect back",
    "tried to connect to …, but an error occurred: timed out",
    "JAVA_GATEWAY_EXITED",
    "No module named 'quorum'",
)
"""Messages of Spark and Python in the table of docs/spark.md."""
VALUE = r"\{[^}]+\}"
"""A value in the text of a message, as Python's source has it."""


def test_the_messages_that_the_page_about_spark_explains_exist() -> None:
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8").partition("## Troubleshooting")[2]
    named = {text for row in page.splitlines() for text in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
    source = "".join(
        file.read_text(encoding="utf-8") for file in sorted((ROOT / "quorum" / "spark").rglob("*.py"))
    )
    own = named - set(OF_SPARK)
    assert len(own) > 5
    for text in own:
        pattern = re.sub(r"\d+", lambda number: f"(?:{number[0]}|{VALUE})", re.escape(text))
        assert re.search(pattern.replace("…", VALUE), source), text
