"""The contract of the Transfer port over verbs, in a VM with Soft-RoCE: the leg of test_transfer.py that needs an RDMA card."""

import os

import pytest

from infra.rdma.fetch import NotToBeHad
from infra.rdma.vm import run

LARGE = os.environ.get("GYRE_LARGE_TRANSFER", str(256 << 20))
"""Of the test of a large region: an emulated card moves tens of MB a second. 3000000000 needs GYRE_VM_MEMORY_MB=8192."""
COMMAND = (
    f"GYRE_LARGE_TRANSFER={LARGE} python3 -m pytest -c /dev/null --rootdir /gyre -p no:cacheprovider --noconftest -W ignore "
    "--color=no -rs -q --durations=3 -k verbs tests/contract/test_transfer.py"
)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_contract_holds_over_verbs(capsys):
    try:
        ended = run(COMMAND, memory_mb=int(os.environ.get("GYRE_VM_MEMORY_MB", "2048")), limit_s=1400)
    except NotToBeHad as error:
        with capsys.disabled():
            print(f"\nTHE VERBS TRANSFER WAS NOT TESTED. There is no Soft-RoCE VM here: {error}")
        pytest.skip(f"no Soft-RoCE VM: {error}")
    assert ended.rc == 0, ended.output
    assert " passed" in ended.output and " skipped" not in ended.output, ended.output
