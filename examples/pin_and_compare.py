"""Pin what you know, compare methods, and hand the best plan to a teammate."""

import enplace as ep

profile = ep.read(ep.samples()["rnnlm-2-2048"])

# Keys are regexes of op names, as for --pin, --forbid and --before on the command line.
comparison = ep.compare(
    profile,
    "v100-2-pcie",
    ["expert", "heft", "celeritas"],
    pins={"^embedding": "GPU:0", "^softmax": "GPU:1"},
    colocate=["^global_norm"],
)
print(comparison)

best = comparison.best
assert best.devices["embedding"] == "GPU:0"
print(f"The best method is {best.method}: {best.step_time_us / 1000:.1f} ms")

# Would a faster link help? The same plan, and then a new one.
same = ep.simulate(profile, best, scale_links=4.0)
new = ep.place(profile, ep.clusters()["v100-2-pcie"].scaled(links=4.0), best.method)
for name, result in {"the same plan": same, "a new plan": new}.items():
    print(f"With links four times as fast, {name} takes {result.step_time_us / 1000:.1f} ms")

# plan.json is what `enplace run` and `enplace.apply` take; the trace opens in Perfetto.
best.save("plan.json")
best.export("trace", "trace.json")
assert ep.read_plan("plan.json", profile).step_time_us == best.step_time_us
