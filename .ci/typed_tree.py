"""Makes the package as it is installed, of links into the tree, for mypy (MYPYPATH): typed_tree.py DIRECTORY.

bench/ and spark/ stand at top level in the tree; as packages of fluxmq they are found only where it is installed.
"""
import sys
from pathlib import Path

root = Path(__file__).resolve().parents[1]
package = Path(sys.argv[1]) / "fluxmq"
package.mkdir(parents=True, exist_ok=True)
for link in package.iterdir():
    link.unlink()
for source in [*(root / "fluxmq").iterdir(), root / "bench", root / "spark"]:
    if source.name != "__pycache__":
        (package / source.name).symlink_to(source)
