"""Record the golden outputs anew: `python tests/golden/record.py [AREA ...]`. `git diff` shows what has changed."""

from __future__ import annotations

import sys
import time

import golden_files
import torch


def main(wanted: list[str]) -> None:
    import golden_cli
    import golden_http
    import golden_python

    torch.set_num_threads(1)
    for area, scenarios in (golden_python.SCENARIOS | golden_http.SCENARIOS | golden_cli.SCENARIOS).items():
        if wanted and area not in wanted:
            continue
        started = time.perf_counter()
        values = {name: golden_files.plain_data(scenario()) for name, scenario in scenarios.items()}
        changed = golden_files.write(area, values)
        print(f"{area}: {len(values)} scenarios in {time.perf_counter() - started:.1f} s{', changed' * changed}")


if __name__ == "__main__":
    main(sys.argv[1:])
