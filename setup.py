"""Build of the compiled core, and what a user installs.

Each .pyx is its own extension module and carries its own directives; this file only lists them and turns the
environment's build switches into compiler flags. Every kind of build has its own directory of objects under build/;
what Cython makes of the sources is the same for all but the last, and they share it (so builds go one after the other):

    FLUXMQ_DEBUG=1      debugging symbols, assertions of C and of the core (debug.h)
    FLUXMQ_SANITIZE=1   that, with AddressSanitizer and UndefinedBehaviourSanitizer (run it under .ci/sanitized)
    FLUXMQ_SANITIZE=parsers     of that, only the modules that read foreign bytes, and what a connection brings them to
                                with AddressSanitizer alone (tox -e sanitize)
    FLUXMQ_COVERAGE=1   line tracing for Cython.Coverage (slow; C files stand beside their .pyx, where the plugin looks)
"""
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
SANITIZE = os.environ.get("FLUXMQ_SANITIZE", "0") != "0"
PARSERS_ONLY = os.environ.get("FLUXMQ_SANITIZE") == "parsers"
DEBUG = os.environ.get("FLUXMQ_DEBUG") == "1" or SANITIZE
COVERAGE = os.environ.get("FLUXMQ_COVERAGE") == "1"
SWITCHES = {"debug": DEBUG, "sanitize": SANITIZE, "parsers": PARSERS_ONLY, "coverage": COVERAGE}
PROCESSORS = len(os.sched_getaffinity(0))
C_FILES = "build/plain/c"
# What Cython would write into each module again, its helpers, is compiled once, in a module that Cython makes and all
# others import. Its C file has no source in the tree. Where lines are traced, it stays with the modules.
SHARED = "fluxmq._core._cyutility"
KIND = "-".join(name for name, on in SWITCHES.items() if on) or "plain"

# Packages of the core, each above those in front of it (tests/tidy/test_rings.py); peer, raft, client, record and
# testing beside them.
CORE = ["wire", "mqtt", "amqp091", "disk", "memory", "pubsub", "envelope", "queue", "exchange", "bridge", "hub", "net",
        "peer", "raft", "client", "record", "testing"]
SPARK = ["examples", "gate", "measures", "player", "profile", "replay", "report", "source", "verify"]
PACKAGES = [
    *find_packages(include=["fluxmq", "fluxmq.*"]),
    "fluxmq.bench", "fluxmq.bench.load", "fluxmq.bench.gate", "fluxmq.bench.micro",
    "fluxmq.spark", *(f"fluxmq.spark.{name}" for name in SPARK),
]
# bench/ and spark/ stand at top level in the tree and ship inside the package, so `fluxmq bench` works from a wheel.
PACKAGE_DIR = {"fluxmq.bench": "bench", "fluxmq.bench.load": "bench/load", "fluxmq.bench.gate": "bench/gate",
               "fluxmq.bench.micro": "bench/micro", "fluxmq.spark": "spark",
               **{f"fluxmq.spark.{name}": f"spark/{name}" for name in SPARK}}

# Modules that read what comes from a socket or a disk, and what these import: nothing else of the core.
PARSERS = {
    "wire": {"levels", "queue_address", "text", "xxh64"},
    "mqtt": {"decode", "encode", "fields", "packets", "props"},
    "amqp091": {"edit", "fields", "methods", "names", "properties", "topics", "values"},
    "disk": {"journal", "journal_format", "record_kinds", "segment_format"},
    "memory": {"link", "message", "tap"},
    "pubsub": {"trie"},
    "envelope": {"envelope"},
    "bridge": {"header", "to_mqtt", "translate"},
    "net": {"websocket"},
    "peer": {"frames", "http2"},
    "raft": {"log", "messages", "records", "wire"},
    "record": {"amqp091", "columns", "counts", "json", "mqtt", "pending", "ring", "rows", "state"},
    "client": {"machine", "message", "publishing", "session", "writer"},
    "testing": {"amqp091", "codec", "frames_probe", "tap_probe", "trie_probe", "websocket_probe"},
}
# The rest of a node of the simulator, in which whole connections are fuzzed. In that build these have AddressSanitizer
# and nothing else that costs: a quarter of the time that a parser takes to compile.
CONNECTIONS = {
    "bridge": {"publish_properties"},
    "exchange": {"exchange", "headers", "table"},
    "hub": {"amqp091_bridge", "disk_pressure", "group_messages", "hub", "moving", "namespaces", "origins", "persist",
            "retained_store", "targets", "transfer"},
    "memory": {"commits", "ledger", "namespace", "spans", "tickets"},
    "net": {"amqp091_channel", "amqp091_connection", "amqp091_tag_runs", "connection", "poller", "recorded",
            "transport"},
    "peer": {"asked", "channel", "feed", "late", "outbox", "parts", "queue_member", "queue_relay", "queue_stream",
             "stream"},
    "pubsub": {"retained", "retained_replay", "routes", "session", "share_group", "topics"},
    "queue": {"amqp_head", "balance", "by_offset", "cache", "claim", "cursor", "delay", "due", "export", "group",
              "handover", "lanes", "lend", "line", "log", "member", "page", "pages", "queue", "relay", "session_member",
              "shared_room", "sizes", "state", "stats", "stream"},
}


def extensions() -> list[Extension]:
    compile_args = ["-O2", "-g0", "-fno-strict-aliasing", "-Wno-unused-function", "-Wno-unreachable-code-fallthrough"]
    link_args: list[str] = []
    macros: list[tuple[str, str | None]] = []
    undefined: list[str] = []
    if DEBUG:
        compile_args[:2] = ["-O1", "-g1" if PARSERS_ONLY else "-g"]
        macros.append(("FLUXMQ_DEBUG", "1"))
        undefined.append("NDEBUG")
    if SANITIZE:
        # Python's own flags have -fwrapv, under which a signed overflow is defined and not looked for.
        compile_args += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer",
                         "-fno-wrapv"]
        link_args += ["-fsanitize=address,undefined"]
    if COVERAGE:
        macros += [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")]
    # Cython follows .pxd files by itself; a changed header must rebuild whoever might include it.
    headers = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "fluxmq" / "_core").rglob("*.h"))]
    found = [] if COVERAGE else [Extension(SHARED, [], define_macros=macros, undef_macros=undefined,
                                           extra_compile_args=compile_args, extra_link_args=link_args)]
    for name in [*CORE, "bench/load"]:
        folder = name if "/" in name else f"fluxmq/_core/{name}"
        package = "fluxmq.bench.load" if "/" in name else f"fluxmq._core.{name}"
        for source in sorted((ROOT / folder).glob("*.pyx")):
            flags = compile_args
            if PARSERS_ONLY and source.stem not in PARSERS.get(name, ()):
                if source.stem not in CONNECTIONS.get(name, ()):
                    continue
                flags = [*compile_args, "-O0", "-g0", "-fno-sanitize=undefined"]
            # Tracing takes the GIL: the journal's writer would wait for it while it has the lock that the loop wants.
            own = [macro for macro in macros if source.stem != "journal" or macro[0] != "CYTHON_TRACE_NOGIL"]
            found.append(Extension(f"{package}.{source.stem}", [f"{folder}/{source.name}"], define_macros=own,
                                   undef_macros=undefined, extra_compile_args=flags, extra_link_args=link_args,
                                   include_dirs=["fluxmq/_core"], depends=headers))
    return found


@contextmanager
def cython_is_old(modules: list[Extension]) -> Iterator[None]:
    """Meanwhile C files are newer than Cython's own .pxd files, if they are newer than all sources.

    pip and tox build in an environment of their own into which Cython has just been installed. A C file that is older
    than what Cython brings would be made again, and compiled again, although not a byte of it changes. (Cython itself
    sees which version made a C file; of the shared one it looks at nothing else.)"""
    made = [ROOT / C_FILES / Path(module.sources[0]).with_suffix(".c") for module in modules if module.name != SHARED]
    sources = [path for folder in ("fluxmq/_core", "bench/load") for path in (ROOT / folder).rglob("*.[hp]*")
               if path.suffix in (".h", ".pxd", ".pyx")]
    times = {path: path.stat().st_mtime_ns for path in made if path.exists()}
    newest = max(path.stat().st_mtime_ns for path in [*sources, ROOT / "setup.py"])
    if len(times) < len(made) or min(times.values()) <= newest:
        times = {}
    for path in times:
        os.utime(path)
    touched = {path: path.stat().st_mtime_ns for path in times}
    try:
        yield
    finally:
        # Objects are newer than these files were, and stay so. What Cython has made again meanwhile is new.
        for path, time in times.items():
            if path.stat().st_mtime_ns == touched[path]:
                os.utime(path, ns=(time, time))


class BuildCore(build_ext):
    """Translates when it is to build, not before: pip runs this file twice only to read what the package needs."""

    def run(self) -> None:
        with nullcontext() if COVERAGE else cython_is_old(self.extensions):
            made = cythonize(self.extensions, nthreads=0 if COVERAGE else PROCESSORS,
                             build_dir=None if COVERAGE else C_FILES,
                             compiler_directives={"linetrace": True} if COVERAGE else {},
                             shared_utility_qualified_name=None if COVERAGE else SHARED)
        # The command has prepared its own objects, and knows no others.
        for module, translated in zip(self.extensions, made, strict=True):
            module.sources = translated.sources
        super().run()


setup(
    packages=PACKAGES,
    package_dir=PACKAGE_DIR,
    # The floors of the load benchmarks are compiled where they run.
    package_data={"": ["*.pyi", "py.typed"], "fluxmq.bench.load": ["floor/*.c", "floor/*.h"],
                  "fluxmq.bench.gate": ["*.yaml"], "fluxmq.spark": ["*.properties"]},
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildCore},
    options={"build": {"build_base": f"build/{KIND}"}, "build_ext": {"parallel": PROCESSORS}},
)
