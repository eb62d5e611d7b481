"""What can happen to the file of an SQLite database under load: a torture run for each of these faults.

    python -m tests.faults.sqlite_faults --faults fill_disk --seconds 8 --rate 300

Both need root, for a disk that can be filled, and for processes that may not write everywhere. `tortured` says what is
printed. The faults of `delayedq torture` can be named, too. SQLite keeps its WAL beside the database, also if that is a
symbolic link, so a disk of the WAL alone can't be full.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.faults.tortured import LONG, Load, fill, main, small_disk, tortured

if TYPE_CHECKING:
    from pathlib import Path

#: What takes from a process of root the right to write what its owner may not write.
NO_RIGHTS = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override", "--"]


class Faults:
    """Each disturbs for a while, and returns when all is as before."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk

    def fill_disk(self) -> None:
        """No byte is left on the disk of the database and its WAL."""
        filler = fill(self._disk)
        time.sleep(LONG)
        filler.unlink()

    def read_only(self) -> None:
        """Nobody may write the files any more, nor make new ones beside them.

        Who has them open may go on, so all workers are killed, and others follow meanwhile.
        """
        from delayedq.operations.workers import live_workers
        from delayedq.store import store_for
        from delayedq.torture.processes import kill

        store = store_for("default")
        workers = [one.pid for one in live_workers(store, store.now())]
        places = [*self._disk.iterdir(), self._disk]
        for place in places:
            place.chmod(place.stat().st_mode & ~0o222)
        kill(workers)
        time.sleep(LONG)
        for place in places:
            place.chmod(place.stat().st_mode | 0o200)


FAULTS = [name for name in vars(Faults) if not name.startswith("_")]


def judged(fault: str, load: Load) -> dict[str, object]:
    """Make a database on a disk of its own, run torture with this fault alone, and say what came of it."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk("60m"))
        os.environ["DATABASE_URL"] = f"sqlite:///{disk / 'database'}"
        load = load._replace(prefix=lambda _: NO_RIGHTS)
        return tortured(fault, getattr(Faults(disk), fault, None), load)


if __name__ == "__main__":
    main("tests.faults.sqlite_faults", __doc__, FAULTS, judged)
