"""What a member frees goes back to the kernel."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
from pathlib import Path
from quorum.api import allocator

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

async def main():
    batches = [b"x" * 100_000 for _ in range(600)]
    del batches[:-1]  # the last one is at the end of the arena: nothing before it goes back by itself
    before = resident_mb()
    returning = asyncio.create_task(allocator.return_memory())
    for _ in range(600):
        await asyncio.sleep(0.2)
        if resident_mb() < before - 50:
            break
    returning.cancel()
    print(before, resident_mb())

allocator.RETURN_S = 0.1
allocator.set_up()
asyncio.run(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_memory_of_freed_batches_goes_back_to_the_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    before, after = map(float, done.stdout.split())
    assert after < before - 50, f"{before:.0f} MB before, {after:.0f} MB after"
