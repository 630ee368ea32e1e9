"""``python -m gpunex.chain.devchain --data DIR --port N``: runs the development chain on 127.0.0.1 until SIGTERM or Ctrl-C."""

import argparse
import signal
import sys
import time
from pathlib import Path

from gpunex.chain.devchain.chain import ReplayDiffers
from gpunex.chain.devchain.genesis import open_chain
from gpunex.chain.devchain.journal import JournalDamaged, JournalInUse
from gpunex.chain.devchain.server import Server
from gpunex.chain.transfers import KeyFileRefused


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpunex.chain.devchain", description="GPUnex development chain")
    parser.add_argument("--data", type=Path, required=True, help="folder of the chain's state; made if missing")
    parser.add_argument("--port", type=int, required=True, help="TCP port on 127.0.0.1")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        chain, faucet = open_chain(options.data)
        server = Server(options.port, chain, faucet)
    except (JournalDamaged, JournalInUse, KeyFileRefused, ReplayDiffers) as refusal:
        print(f"devchain: {refusal}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"devchain: cannot use port {options.port} or {options.data}: {error}", file=sys.stderr)
        return 1
    print(
        f"devchain: http://127.0.0.1:{options.port} at height {chain.height} with {len(chain.landed)} transactions, "
        f"ready after {time.monotonic() - began:.1f} s",
        flush=True,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server.serve_forever(poll_interval=0.5)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
