"""The command `rmq-gateway docs`: the documents of the installed version, and the examples of deployment."""

from pathlib import Path
from typing import Final

import click

DISTRIBUTION: Final = "rocketmq-gateway"
INSTALLED: Final = "share/doc/rocketmq-gateway/docs"
"""The folder of the documents within an installation; pyproject.toml puts them there."""


class DocumentsMissing(click.ClickException):
    """The documents are not installed."""


def find_documents() -> Path:
    """Return the folder of the documents: that of the checkout, or of the installation. Raises DocumentsMissing."""
    checkout = Path(__file__).resolve().parents[2] / "docs"
    if (checkout / "index.md").is_file():
        return checkout
    from importlib.metadata import PackageNotFoundError, files

    try:
        installed = files(DISTRIBUTION) or []
    except PackageNotFoundError:
        installed = []
    for file in installed:
        if file.as_posix().endswith(f"{INSTALLED}/index.md"):
            return Path(str(file.locate())).resolve().parent
    raise DocumentsMissing(
        f"the documents are not installed: install {DISTRIBUTION} from its wheel, which has them"
    )


def list_pages(folder: Path) -> dict[str, str]:
    """Return the titles of all pages by their names, such as ``how-to/serve``."""
    documents = {}
    for path in sorted(folder.rglob("*.md")):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        documents[path.relative_to(folder).with_suffix("").as_posix()] = first.lstrip("# ")
    return documents


@click.command()
@click.argument("page", required=False)
@click.option("--folder", is_flag=True, help="Print the folder of the documents and examples instead.")
def docs(page: str | None, folder: bool) -> None:
    """Print the document PAGE, for example how-to/serve; without PAGE, list all.

    The folder also has examples of container deployment, in deploy/.
    """
    directory = find_documents()
    if folder:
        click.echo(directory.parent)
        return
    pages = list_pages(directory)
    if page is None:
        width = max(map(len, pages))
        click.echo("\n".join(f"{name:<{width}}  {title}" for name, title in pages.items()))
        return
    chosen = page.removesuffix(".md")
    if chosen not in pages:
        similar = [name for name in pages if name.rpartition("/")[2] == chosen]
        if len(similar) != 1:
            raise click.UsageError(f"no document {page!r}; `rmq-gateway docs` lists all")
        chosen = similar[0]
    click.echo_via_pager((directory / f"{chosen}.md").read_text(encoding="utf-8"))
