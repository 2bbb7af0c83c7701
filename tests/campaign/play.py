"""A campaign against three real nodes with etcd: rounds of load and faults, drawn from a seed, each with a verdict by
the identity of what was acknowledged.

    python tests/campaign/play.py --rounds 100 [--seed S] [--base-port P] [--ttl SECONDS] [--only A,B] [--dir D]
    python tests/campaign/play.py --rounds 100 --namespaces        as root: packets vanish where a proxy would answer

One line for each round, with what went wrong below it; a summary at the end. Status 1: something went wrong. The
directory has a file for each such round, with what the nodes said meanwhile.
"""
from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from campaign.faults import PROXIED, SPACED
from campaign.rounds import Campaign, Round, summary
from kit.broker import PORTS_VARIABLE

PORTS = 400     # of its own


def tell(one: Round) -> None:
    print(one.line(), *(f"    {line}" for line in one.found.told), sep="\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--base-port", type=int, metavar="P",
                        help=f"brokers and members listen on ports from here to P + {PORTS - 1}; default: any")
    parser.add_argument("--ttl", type=int, default=3, metavar="SECONDS", help="of leases; longer on a busy machine")
    parser.add_argument("--namespaces", action="store_true", help="each node in a network namespace; needs root")
    parser.add_argument("--only", metavar="FAULTS", help=f"some of {', '.join(PROXIED)}; with --namespaces of "
                                                         f"{', '.join(SPACED)}")
    parser.add_argument("--dir", type=Path, metavar="D", help="default: a new one where temporary files are")
    options = parser.parse_args()
    if options.namespaces and os.geteuid() != 0:
        parser.error("--namespaces needs root")
    only = options.only.split(",") if options.only else None
    if unknown := sorted({*(only or ())} - {*(SPACED if options.namespaces else PROXIED)}):
        parser.error(f"there is no fault {', '.join(unknown)} here; --help names them")
    if options.base_port is not None:
        os.environ[PORTS_VARIABLE] = f"{options.base_port}-{options.base_port + PORTS - 1}"
    directory = options.dir or Path(tempfile.mkdtemp(prefix="campaign-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, in {directory}", flush=True)
    campaign = Campaign(directory, options.seed, ttl_s=options.ttl, only=only, spaced=options.namespaces)
    played = campaign.play(options.rounds, tell)
    print(summary(played, options.seed))
    return int(any(one.found for one in played))


if __name__ == "__main__":
    sys.exit(main())
