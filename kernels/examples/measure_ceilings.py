"""What a device can do at most, measured and by its data sheet: python measure_ceilings.py, or cell by cell."""

# %%
import kernalyse

client = kernalyse.connect(start=True)
run = client.wait(client.submit(kernalyse.ceilings()))
print(run)

# %% Ceilings are kept with the device, beside those of the data sheet
for ceiling in client.hardware(run.node_id, run.device_id):
    print(f"{ceiling.ceiling_name:<24} {ceiling.path:<7} {ceiling.source:<10} {ceiling.value / 1e9:12.1f} G {ceiling.unit}")

client.close()
