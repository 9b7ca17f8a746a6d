"""The sources for a session whose Spark has not got this package: `ship(session)`, for notebooks and Spark Connect.

    from spark import ship
    ship(session)
    session.readStream.format("rocketmq")…

The package's source text travels inside the pickles of sources, readers and writers; whoever unpickles one can import
it from memory from then on. It works for batches and streams, on clusters and through Connect. pyspark's own ways,
`--py-files` and `addArtifact`, work for batches only: Spark looks for them in the wrong place when it starts a stream.

What the package itself needs (`NEEDED`) has to be where Spark's Python workers are, and so has the same minor version
of Python. It costs some tenths of a second in every new Python worker: install the package where jobs run for good.

Everything here but `ship` and `sources` runs where the package is not: it is pickled by value, and may use nothing of
this module but what it is given.
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
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

SHIPPED_PACKAGES: Final = ("codec", "toolkit", "remoting", "spark")
REQUIRED_MODULES: Final = ("numpy", "orjson", "pyarrow", "trio")
"""What has to be installed where Spark's Python workers are."""
SOURCE_MODULES: Final = ("pyspark_rocketmq", "pyspark_rocketmq_capture")
"""The modules that Spark would find the sources in, were they installed."""
SHIPPED_MODULES: Final = (*SOURCE_MODULES, "rocketmq_pages")
"""What travels besides the packages."""


def ship(session: "SparkSession") -> None:
    """Make the sources known to a session of a Spark that has not got this package."""
    import pyspark

    cloudpickle: Any = pyspark.cloudpickle
    archive = zlib.compress(pickle.dumps(package_sources()))
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)
    try:
        for module in SOURCE_MODULES:
            real = importlib.import_module(module).DefaultSource
            session.dataSource.register(_shipped_source(real.name(), module, archive, REQUIRED_MODULES))
    finally:
        cloudpickle.unregister_pickle_by_value(here)


def package_sources() -> dict[str, str]:
    """The source text of the package's modules, by their paths; tests are left out."""
    found = {f"{module}.py": _module_source(module) for module in SHIPPED_MODULES}
    for package in SHIPPED_PACKAGES:
        found |= dict(_walk_sources(files(package), package))
    return found


def _walk_sources(directory: Traversable, place: str) -> Iterator[tuple[str, str]]:
    for each in directory.iterdir():
        path = f"{place}/{each.name}"
        if each.is_dir() and each.name not in ("tests", "__pycache__"):
            yield from _walk_sources(each, path)
        elif each.name.endswith(".py"):
            yield path, each.read_text(encoding="utf-8")


def _module_source(module: str) -> str:
    loader: Any = importlib.import_module(module).__loader__
    return str(loader.get_source(module))


def _shipped_source(
    format_name: str, module: str, archive: bytes, needed: tuple[str, ...]
) -> "type[DataSource]":
    """A source that unpacks the package where it is and has the real one do everything."""
    from pyspark.sql.datasource import DataSource

    class Shipped(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def _real(self) -> Any:
            install_package(archive, needed)
            return importlib.import_module(module).DefaultSource(self.options)

        def _carried(self, made: Any) -> Any:
            return attach_package(made, archive, needed)

        def schema(self) -> Any:
            return self._real().schema()

        def reader(self, schema: Any) -> Any:
            return self._carried(self._real().reader(schema))

        def streamReader(self, schema: Any) -> Any:
            return self._carried(self._real().streamReader(schema))

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return self._carried(self._real().writer(schema, overwrite))

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return self._carried(self._real().streamWriter(schema, overwrite))

    return Shipped


def attach_package(carrier: Any, archive: bytes, needed: tuple[str, ...]) -> Any:
    """The same reader or writer, whose pickles bring the package with them from now on."""
    import copyreg

    def reduce(this: Any) -> tuple[Any, ...]:
        return revive_object, (archive, needed, pickle.dumps((type(this), this.__getstate__())))

    copyreg.pickle(type(carrier), reduce)
    return carrier


def revive_object(archive: bytes, needed: tuple[str, ...], pickled: bytes) -> Any:
    """The other end of `carried`."""
    install_package(archive, needed)
    kind, state = pickle.loads(pickled)
    made = kind.__new__(kind)
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return made
    for attributes in state if isinstance(state, tuple) else (state,):
        for name, value in (attributes or {}).items():
            object.__setattr__(made, name, value)
    return made


def install_package(archive: bytes, needed: tuple[str, ...]) -> None:
    """Make the package importable here, unless it is already. Raises ImportError for what it needs and is not here."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"Spark's Python workers need {', '.join(missing)} beside what was shipped: install it"
        )
    if not any(getattr(finder, "shipped", None) == archive for finder in sys.meta_path):
        sys.meta_path.insert(0, MemoryImporter(pickle.loads(zlib.decompress(archive)), archive))


class MemoryImporter(MetaPathFinder, Loader):
    """Imports modules from their source text."""

    def __init__(self, texts: Mapping[str, str], shipped: bytes) -> None:
        self.texts = texts
        self.shipped = shipped

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module, if its text is here."""
        place = name.replace(".", "/")
        for file, package in ((f"{place}/__init__.py", True), (f"{place}.py", False)):
            if file in self.texts:
                return importlib.util.spec_from_loader(name, self, origin=file, is_package=package)
        return None

    def get_source(self, name: str) -> str:
        """For tracebacks."""
        spec = self.find_spec(name)
        return self.texts[str(spec.origin)] if spec else ""

    def get_code(self, name: str) -> CodeType:
        """For tools that ask."""
        return compile(self.get_source(name), f"<shipped {name}>", "exec")

    def exec_module(self, module: ModuleType) -> None:
        """Runs the text."""
        exec(self.get_code(module.__name__), module.__dict__)
