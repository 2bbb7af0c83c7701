"""Copies what git knows of a tree, with what is changed and not yet committed: copy_tree.py FROM TO."""
import shutil
import subprocess
import sys
from pathlib import Path

source, target = map(Path, sys.argv[1:])
listed = subprocess.run(["git", "-C", source, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                        check=True, capture_output=True)
for name in filter(None, listed.stdout.decode().split("\0")):
    if (source / name).is_file():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name)
