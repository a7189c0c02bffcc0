"""Any command under a profiler on a node: python profile_command.py [COLLECTOR [PROGRAM ARGUMENTS...]], or cell by cell.

Collectors: nsys (any CUDA program), ncu (counters of its kernels), kineto (PyTorch, unchanged), proton (Triton).
"""

# %%
import sys

import kernalyse

collector, *command = sys.argv[1:] or ["nsys"]
client = kernalyse.connect(start=True)

# %% The directory of the program can travel with it: bundle_digest=client.upload_bundle(Path("my_project"))
spec = kernalyse.command(command or ["python3", "-c", "print(sum(range(10**6)))"], collector=collector, max_duration_s=60)

# %% What a node lacks for it is named with its remedy
try:
    run = client.wait(client.submit(spec, title=f"A command under {collector}"))
except kernalyse.RequestError as error:
    raise SystemExit(f"Not here: {error}") from None
if run.error is not None:
    raise SystemExit(f"Not here: {run.error.message}")

# %% Its trace has become tables of the run
for table_name in ("kernels", "breakdown", "layers"):
    print(table_name, client.table(run, table_name, limit=10))

client.close()
