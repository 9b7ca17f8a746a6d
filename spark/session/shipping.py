"""Ship this package to a Spark that does not have it: `ship(session)`, for notebooks and Spark Connect.

    from spark import ship
    ship(session)
    session.readStream.format("rocketmq")…

The package's source text travels inside the pickles of sources, readers and writers. Unpickling one of them installs
an importer that serves the package from memory. This works for batches and streams, on clusters and through Connect.
pyspark's `--py-files` and `addArtifact` do not: when Spark starts a stream, it looks for them in the wrong directory.

Spark's Python workers must have `REQUIRED_MODULES` and the driver's minor version of Python. Every new Python worker
spends some tenths of a second unpacking, so install the package where jobs run regularly.

Everything here except `ship` and `package_sources` runs where the package is missing. It is pickled by value, and may
use no other part of the package.
"""

import importlib
import importlib.util
import pickle
import sys
import zlib
from collections.abc import Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

SHIPPED_PACKAGES: Final = ("codec", "toolkit", "remoting", "spark")
REQUIRED_MODULES: Final = ("numpy", "orjson", "pyarrow", "trio")
"""Modules that must be installed where Spark's Python workers run."""
SOURCE_MODULES: Final = ("pyspark_rocketmq", "pyspark_rocketmq_capture")
"""Modules in which Spark would find the sources if the package were installed."""


def ship(session: "SparkSession") -> None:
    """Register the sources with a session whose Spark does not have this package."""
    import pyspark

    cloudpickle: Any = pyspark.cloudpickle
    archive = zlib.compress(pickle.dumps(package_sources()))
    this_module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(this_module)
    try:
        for module in SOURCE_MODULES:
            real = importlib.import_module(module).DefaultSource
            session.dataSource.register(_shipped_source(real.name(), module, archive, REQUIRED_MODULES))
    finally:
        cloudpickle.unregister_pickle_by_value(this_module)


def package_sources() -> dict[str, str]:
    """Return the source text of the package's modules by path, without tests."""
    sources = {f"{module}.py": _module_source(module) for module in SOURCE_MODULES}
    for package in SHIPPED_PACKAGES:
        sources |= dict(_walk_sources(files(package), package))
    return sources


def _walk_sources(directory: Traversable, folder: str) -> Iterator[tuple[str, str]]:
    for entry in directory.iterdir():
        path = f"{folder}/{entry.name}"
        if entry.is_dir() and entry.name not in ("tests", "__pycache__"):
            yield from _walk_sources(entry, path)
        elif entry.name.endswith(".py"):
            yield path, entry.read_text(encoding="utf-8")


def _module_source(module: str) -> str:
    """Return the text of a module: from its file, or from its loader if it came from an archive or was shipped itself.

    The file comes first because not every loader has the text: pytest's loader of rewritten modules does not.
    """
    loaded = importlib.import_module(module)
    file = getattr(loaded, "__file__", None)
    if file is not None and Path(file).is_file():
        return Path(file).read_text(encoding="utf-8")
    loader: Any = loaded.__loader__
    return str(loader.get_source(module))


def _shipped_source(
    format_name: str, module: str, archive: bytes, required: tuple[str, ...]
) -> "type[DataSource]":
    """Return a source class that installs the package wherever it runs and delegates to the real source."""
    from pyspark.sql.datasource import DataSource

    # Pickled by value with its closure, so all that it needs travels with it: format name, module, archive.
    class Shipped(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def _real(self) -> Any:
            install_package(archive, required)
            return importlib.import_module(module).DefaultSource(self.options)

        def _with_package(self, carrier: Any) -> Any:
            return attach_package(carrier, archive, required)

        def schema(self) -> Any:
            return self._real().schema()

        def reader(self, schema: Any) -> Any:
            return self._with_package(self._real().reader(schema))

        def streamReader(self, schema: Any) -> Any:
            return self._with_package(self._real().streamReader(schema))

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return self._with_package(self._real().writer(schema, overwrite))

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return self._with_package(self._real().streamWriter(schema, overwrite))

    return Shipped


def attach_package(carrier: Any, archive: bytes, required: tuple[str, ...]) -> Any:
    """Return the same reader or writer, changed so that its pickles carry the package."""
    import copyreg

    def reduce(this: Any) -> tuple[Any, ...]:
        return revive_object, (archive, required, pickle.dumps((type(this), this.__getstate__())))

    copyreg.pickle(type(carrier), reduce)
    return carrier


def revive_object(archive: bytes, required: tuple[str, ...], pickled: bytes) -> Any:
    """Unpickle an object of `attach_package`."""
    install_package(archive, required)
    kind, state = pickle.loads(pickled)
    revived = kind.__new__(kind)
    if hasattr(revived, "__setstate__"):
        revived.__setstate__(state)
        return revived
    for attributes in state if isinstance(state, tuple) else (state,):
        for name, value in (attributes or {}).items():
            object.__setattr__(revived, name, value)
    return revived


def install_package(archive: bytes, required: tuple[str, ...]) -> None:
    """Make the package importable here, unless it is already. Raises ImportError for missing requirements."""
    missing_modules = [name for name in required if importlib.util.find_spec(name) is None]
    if missing_modules:
        raise ImportError(
            f"Spark's Python workers need {', '.join(missing_modules)}, which cannot be shipped: install it there"
        )
    if not any(getattr(finder, "shipped", None) == archive for finder in sys.meta_path):
        sys.meta_path.insert(0, MemoryImporter(pickle.loads(zlib.decompress(archive)), archive))


class MemoryImporter(MetaPathFinder, Loader):
    """Imports modules from their source text."""

    def __init__(self, texts: Mapping[str, str], shipped: bytes) -> None:
        self.texts = texts
        self.shipped = shipped

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module whose text is available."""
        stem = name.replace(".", "/")
        for file, package in ((f"{stem}/__init__.py", True), (f"{stem}.py", False)):
            if file in self.texts:
                return importlib.util.spec_from_loader(name, self, origin=file, is_package=package)
        return None

    def get_source(self, name: str) -> str:
        """Return a module's text, for tracebacks."""
        spec = self.find_spec(name)
        return self.texts[str(spec.origin)] if spec else ""

    def get_code(self, name: str) -> CodeType:
        """Return a module's compiled text."""
        return compile(self.get_source(name), f"<shipped {name}>", "exec")

    def exec_module(self, module: ModuleType) -> None:
        """Execute a module's text."""
        exec(self.get_code(module.__name__), module.__dict__)
