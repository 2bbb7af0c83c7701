"""Build of the compiled core, and what a user installs.

Each .pyx is its own extension module and carries its own directives; this file only lists them and turns the
environment's build switches into compiler flags:

    FLUXMQ_DEBUG=1      assertions in the core (debug.h), live-object counters
    FLUXMQ_SANITIZE=1   with AddressSanitizer and UndefinedBehaviourSanitizer (run under LD_PRELOAD=libasan)
    FLUXMQ_COVERAGE=1   line tracing for Cython.Coverage (slow; in place only)
"""
import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
DEBUG = os.environ.get("FLUXMQ_DEBUG") == "1"
SANITIZE = os.environ.get("FLUXMQ_SANITIZE") == "1"
COVERAGE = os.environ.get("FLUXMQ_COVERAGE") == "1"

PACKAGES = [
    "fluxmq", "fluxmq._core", "fluxmq.model", "fluxmq.engine", "fluxmq.storage", "fluxmq.access",
    "fluxmq.edge", "fluxmq.edge.mqtt", "fluxmq.admin", "fluxmq.app",
    "fluxmq.bench", "fluxmq.bench.load", "fluxmq.bench.micro",
]
# bench/ and spark/ stand at top level in the tree and ship inside the package, so that `fluxmq bench` works from a wheel.
PACKAGE_DIR = {"fluxmq.bench": "bench", "fluxmq.bench.load": "bench/load", "fluxmq.bench.micro": "bench/micro"}


def extensions() -> list[Extension]:
    compile_args = ["-O2", "-g0", "-fno-strict-aliasing", "-Wno-unused-function", "-Wno-unreachable-code-fallthrough"]
    link_args: list[str] = []
    macros: list[tuple[str, str | None]] = []
    if DEBUG or SANITIZE:
        compile_args[:2] = ["-O1", "-g"]
        macros.append(("FLUXMQ_DEBUG", "1"))
    if SANITIZE:
        compile_args += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
        link_args += ["-fsanitize=address,undefined"]
    if COVERAGE:
        macros += [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")]
    found = []
    for folder, package in (("fluxmq/_core", "fluxmq._core"), ("bench/load", "fluxmq.bench.load")):
        for source in sorted((ROOT / folder).glob("*.pyx")):
            found.append(Extension(f"{package}.{source.stem}", [f"{folder}/{source.name}"], define_macros=macros,
                                   extra_compile_args=compile_args, extra_link_args=link_args,
                                   include_dirs=["fluxmq/_core"]))
    return found


setup(
    packages=PACKAGES,
    package_dir=PACKAGE_DIR,
    # The floors of the load benchmarks are compiled where they run.
    package_data={"": ["*.pyi", "py.typed"], "fluxmq.bench.load": ["floor/*.c", "floor/*.h"]},
    ext_modules=cythonize(extensions(), nthreads=0 if COVERAGE else 2,
                          compiler_directives={"linetrace": True} if COVERAGE else {}),
)
