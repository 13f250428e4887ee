"""The folders at the root are components, and shadow nothing."""

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_import_queue_from_the_root_is_the_standard_librarys() -> None:
    # Run as `python -c` is there: the root itself comes first on the path.
    code = "import queue; queue.Queue; print(queue.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == Path(sysconfig.get_path("stdlib"))
