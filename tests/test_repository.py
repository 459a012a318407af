"""Files for GitHub and others are well-formed, and say what pyproject says."""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (pip install 'trtint8[docs]')")

ROOT = Path(__file__).parents[1]


def load(path):
    return yaml.safe_load((ROOT / path).read_text())


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_files_for_github_are_read_as_yaml(path):
    assert isinstance(load(path), dict)


def test_the_suite_runs_on_every_version_from_the_least_on():
    versions = load(".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    least = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert versions == [f"3.{minor}" for minor in range(int(least[1]), int(least[1]) + 5)]


@pytest.mark.parametrize("name", ["test", "docs", "publish"])
def test_jobs_of_workflows_end_and_have_no_more_rights_than_they_need(name):
    workflow = load(f".github/workflows/{name}.yml")
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


@pytest.mark.parametrize("name", ["test", "docs", "publish"])
def test_actions_are_named_by_their_commit(name):
    text = (ROOT / f".github/workflows/{name}.yml").read_text()
    uses = re.findall(r"uses: (.*)", text)
    assert uses and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[0-9.]+", one) for one in uses)
    assert text.count("uses:") == len(uses)


def test_the_image_does_not_run_as_root():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    users = [line for line in lines if line.startswith("USER")]
    assert users == ["USER app"] and lines.index("USER app") < lines.index('ENTRYPOINT ["trtint8"]')


def test_a_release_is_published_without_a_token():
    publish = load(".github/workflows/publish.yml")["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github/workflows/publish.yml").read_text()


def test_the_citation_has_the_projects_licence():
    citation = load("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    # The package also holds scripts that others wrote: see trtint8/report/vendored.
    assert f'license = "{citation["license"]} AND MIT"' in (ROOT / "pyproject.toml").read_text()


def test_the_image_installs_extras_that_exist():
    extras = re.search(r"/source\[([\w,-]+)\]", (ROOT / "Dockerfile").read_text())[1].split(",")
    assert set(extras) <= extras_of_the_package()


def test_the_page_on_installation_has_every_extra_of_users():
    page = (ROOT / "docs/installation.md").read_text()
    listed = page.split("## The extras")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", listed, re.MULTILINE)) == (
        extras_of_the_package() - {"dev", "docs"}
    )
    for named in re.findall(r"trtint8\[([\w,-]+)\]", page):
        assert set(named.split(",")) <= extras_of_the_package(), named


def extras_of_the_package() -> set[str]:
    section = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
    return set(re.findall(r"^([\w-]+) = \[", section.split("\n[")[0], re.MULTILINE))


def test_an_editable_install_is_a_line_in_a_pth_file():
    # Otherwise setuptools writes a finder, which type checkers do not run.
    assert '\n[tool.setuptools.package-dir]\n"" = "."\n' in (ROOT / "pyproject.toml").read_text()
