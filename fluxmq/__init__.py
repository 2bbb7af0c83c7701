"""FluxMQ, a message broker. Importing this package imports nothing compiled.

In a checkout the source folder comes before the installed package, and has no compiled core. What is installed then
takes its place, so that scripts work in the directory in which the README puts its reader.
"""
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from os.path import abspath, dirname, exists, join

__all__ = ["__version__"]
__version__ = "0.1.0"


def _compiled(folder: str) -> bool:
    # A module that every kind of build has, that of the parsers alone among them (setup.py).
    return any(exists(join(folder, "_core", "wire", "text" + suffix)) for suffix in EXTENSION_SUFFIXES)


if not _compiled(dirname(abspath(__file__))):
    _installed = [_folder for _folder in (join(_path or ".", "fluxmq") for _path in sys.path) if _compiled(_folder)]
    if not _installed:
        _here = dirname(abspath(__file__))
        raise ImportError(f"{_here} has FluxMQ's sources, and its core is not compiled: run `pip install .` in "
                          f"{dirname(_here)}, with the Python that you use here")
    __path__[:] = _installed[:1]
