"""A whole model on the project's own kernels, layer by layer: python profile_model.py, or cell by cell."""

# %%
import kernalyse

client = kernalyse.connect(start=True)

# %% Two variants of one model; every layer streams while it runs
spec = kernalyse.model(
    "gpt-nano",
    variants=["baseline", "fused"],
    batch_size=1,
    sequence_length=16,
    measuring=kernalyse.Measuring(min_duration_s=0.1, max_duration_s=1),
)
try:
    run = client.submit(spec)
except kernalyse.RequestError as error:
    raise SystemExit(f"Not here: {error}") from None
for update in client.watch(run):
    if update.run is not None:
        print(update.run)

# %% Layers by the time they take
run = client.run(run)
if run.error is not None:
    raise SystemExit(f"Not here: {run.error.message}")
print(client.table(run, "measurements", order_by=["-duration_median_ns"], limit=10, columns=["label", "variant", "duration_median_ns"]))

client.close()
