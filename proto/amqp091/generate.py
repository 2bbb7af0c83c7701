"""Makes the AMQP 0-9-1 codec of the core from the table beside this file.

    python proto/amqp091/generate.py [--check] [--out FOLDER]

FOLDER is fluxmq/_core. --check writes nothing and ends with 1 if a file there is not what would be written.

    amqp091/consts.pxd                  numbers, for C
    amqp091/methods.{pxd,pyx,pyi}       one class for each method, decode_method
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from declarations import consts, methods_pxd, methods_pyi
from definitions import methods_pyx

__all__ = ["generate", "main"]

HERE = Path(__file__).resolve()
CORE = HERE.parents[2] / "fluxmq" / "_core"


def generate() -> dict[str, str]:
    """Every file that is made: its name and what is in it."""
    made = {"amqp091/consts.pxd": consts, "amqp091/methods.pxd": methods_pxd, "amqp091/methods.pyi": methods_pyi,
            "amqp091/methods.pyx": methods_pyx}
    return {name: "\n".join(make()) + "\n" for name, make in made.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Makes the AMQP 0-9-1 codec of the core.")
    parser.add_argument("--check", action="store_true", help="write nothing, say what is not as it should be")
    parser.add_argument("--out", type=Path, default=CORE)
    options = parser.parse_args(arguments)
    stale = []
    for name, text in generate().items():
        path = options.out / name
        if options.check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(name)
        elif not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name} is not what proto/amqp091/generate.py makes")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
