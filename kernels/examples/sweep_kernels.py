"""A sweep of kernels from Python, watched while it runs: python sweep_kernels.py, or cell by cell."""

# %% Connect to the analyzer that runs here (`kernalyse up`), or start one for as long as this program takes
import kernalyse

client = kernalyse.connect(start=True)
short = kernalyse.Measuring(min_duration_s=0.05, max_duration_s=0.5)

# %% Say what to measure
spec = kernalyse.kernel_sweep(
    "matmul_naive",
    "matmul_tiled",
    parameters={"N": [64, 128]},
    ties={"M": "N", "K": "N"},
    measuring=short,
)
run = client.submit(spec, title="Two matrix products")

# %% Watch it: states, and rows as they are measured
for update in client.watch(run):
    for table in update.tables:
        if table.name == "measurements":
            for row in table.to_polars().iter_rows(named=True):
                print(f"{row['label']:<36} {row['duration_median_ns'] / 1e3:10.1f} us  {row['verification_state'].lower()}")
print(client.run(run))

# %% Ask for tables, filtered and ordered by the analyzer
roofline = client.table(run, "roofline", order_by=["-achieved_flop_per_s"], columns=["label", "achieved_flop_per_s", "efficiency_ratio"])
print(roofline)

# %% Which of the two is faster, in alternating blocks
spec = kernalyse.kernel_sweep(
    "matmul_naive", "matmul_tiled", parameters={"N": [128]}, ties={"M": "N", "K": "N"}, is_paired=True, measuring=short
)
paired = client.wait(client.submit(spec))
for row in client.table(paired, "paired_comparisons").iter_rows(named=True):
    print(f"{row['label']} against {row['baseline_label']}: {row['verdict'].lower()}, {row['reason']}")

client.close()
